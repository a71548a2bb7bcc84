"""Ways to attend: what they read, what they keep between steps, and on which device they work."""

import pytest
import torch

from topokv import (
    KVCache,
    Scheduler,
    block_centroids,
    centroid_drift,
    dense_decode,
    select_tokens,
    sparse_decode,
)
from topokv.attention import ATTENTION_PATHS, attention_path_named, csr, prepare_dense
from topokv.attention.runs import token_runs
from topokv.inputs.workload import gaussian
from topokv.scheduling import SELECTORS, schedule_tokens, token_budget
from topokv.scheduling.candidate_rows import candidate_row, candidate_rows

by_path = pytest.mark.parametrize("path", ATTENTION_PATHS, ids=lambda path: path.name)
COPYING = ("gather", "blocks")
copying = pytest.mark.parametrize("name", COPYING)


def workload(kv_len=100, batch=2, num_q_heads=4):
    return gaussian(
        batch=batch,
        num_q_heads=num_q_heads,
        num_kv_heads=2,
        kv_len=kv_len,
        head_dim=16,
        dtype=torch.float32,
    )


def exact(q, cache, token_ids):
    """Attention in float64 over the tokens of each row."""
    heads = q.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    for request in range(q.shape[0]):
        for head in range(heads):
            ids = token_ids[request, head * token_ids.shape[1] // heads]
            kv_head = head * cache.num_kv_heads // heads
            k, v = (t[request, kv_head, ids].double() for t in (cache.k, cache.v))
            weights = (k @ q[request, head, 0].double() / 4).softmax(dim=0)
            out[request, head, 0] = weights @ v
    return out


def assert_attends(found, q, cache, schedule):
    expected = exact(q, cache, schedule.token_ids)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@by_path
@pytest.mark.parametrize("selector", ["drift", "witness"])
def test_one_object_attends_every_step_of_a_growing_cache(path, selector):
    w = workload(kv_len=70)
    scheduler = Scheduler(w.cache.k[:, :, :30], 24, selector=selector, block_size=8)
    attend = path.make()
    for kv_len in range(31, 71):
        scheduler.append(w.cache.k[:, :, kv_len - 1 : kv_len])
        cache = KVCache(w.cache.k[:, :, :kv_len], w.cache.v[:, :, :kv_len])
        schedule = scheduler.schedule(w.q)
        assert_attends(attend.load(w.q, cache, schedule)(), w.q, cache, schedule)


@copying
def test_buffers_are_kept_from_step_to_step(name):
    w = workload()
    scheduler = Scheduler(w.cache.k, 24, selector="witness", block_size=8)
    attend = attention_path_named(name).make()
    attend.load(w.q, w.cache, scheduler.schedule(w.q))()
    places = attend._k.data_ptr(), attend._v.data_ptr()
    attend.load(w.q, w.cache, scheduler.schedule(w.q))()
    assert (attend._k.data_ptr(), attend._v.data_ptr()) == places


@copying
def test_a_cache_laid_out_by_token_is_read_where_it_lies(name):
    w = workload()
    k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (w.cache.k, w.cache.v))
    cache = KVCache(k, v)
    schedule = Scheduler(k, 24, selector="witness", block_size=8).schedule(w.q)
    attend = attention_path_named(name).make()
    assert_attends(attend.load(w.q, cache, schedule)(), w.q, cache, schedule)
    read = [windows.untyped_storage().data_ptr() for windows, _, _ in attend._copies]
    assert read == [k.untyped_storage().data_ptr(), v.untyped_storage().data_ptr()]


@by_path
def test_keys_and_values_may_lie_differently(path):
    w = workload()
    cache = KVCache(w.cache.k, w.cache.v.transpose(1, 2).contiguous().transpose(1, 2))
    schedule = Scheduler(cache.k, 24, block_size=8).schedule(w.q)
    assert_attends(path.prepare(w.q, cache, schedule)(), w.q, cache, schedule)


@by_path
@pytest.mark.parametrize("kv_len", [1, 5, 8, 9])
def test_a_cache_of_about_one_block_is_attended_whole(path, kv_len):
    w = workload(kv_len=kv_len)
    schedule = Scheduler(w.cache.k, kv_len, block_size=8).schedule(w.q)
    dense = dense_decode(w.q, w.cache.k, w.cache.v)
    torch.testing.assert_close(path.prepare(w.q, w.cache, schedule)(), dense)


@by_path
def test_a_call_repeats_itself_whatever_the_keys_hold(path):
    w = workload()
    w.cache.k[:, :, 50] = torch.inf
    schedule = Scheduler(w.cache.k, 100, block_size=8).schedule(w.q)
    attend = path.prepare(w.q, w.cache, schedule)
    first = attend().clone()
    torch.testing.assert_close(attend(), first, rtol=0, atol=0, equal_nan=True)


def test_csr_is_for_cpus():
    q, cache = on_meta(100)
    schedule = Scheduler(cache.k, 50).schedule(q)
    with pytest.raises(ValueError) as refused:
        attention_path_named("csr").prepare(q, cache, schedule)
    assert str(refused.value) == "attention 'csr' is for CPUs, got meta; use another --attention"


def test_where_torch_lacks_what_csr_needs_one_line_says_so(monkeypatch):
    def lacking(*args, **kwargs):
        raise RuntimeError("Calling sampled_addmm requires MKL\nand more")

    w = workload()
    schedule = Scheduler(w.cache.k, 50).schedule(w.q)
    monkeypatch.setattr(torch.sparse, "sampled_addmm", lacking)
    csr.check_products.cache_clear()
    with pytest.raises(ValueError) as refused:
        attention_path_named("csr").prepare(w.q, w.cache, schedule)
    assert str(refused.value) == (
        "attention 'csr' needs sparse products, which this torch lacks: "
        "Calling sampled_addmm requires MKL; use another --attention"
    )


@pytest.mark.parametrize(
    ("kv_len", "tokens", "blocks", "runs"),
    [
        # Neighbours merge, whatever their rank; the last ranked is cut to what is left.
        (40, 20, [3, 5], [(0, 4), (12, 16), (20, 24), (32, 40)]),
        (40, 16, [7], [(0, 4), (28, 40)]),
        (40, 14, [3], [(0, 4), (12, 14), (32, 40)]),
        (42, 18, [3], [(0, 4), (12, 16), (32, 42)]),
        (42, 16, [3], [(0, 4), (12, 14), (32, 42)]),
    ],
)
def test_runs_of_neighbouring_tokens(kv_len, tokens, blocks, runs):
    budget = token_budget(
        kv_len=kv_len, block_size=4, selected_tokens=tokens, sink_blocks=1, local_blocks=2
    )
    assert token_runs(blocks, budget) == runs


@pytest.mark.parametrize("selected_tokens", range(1, 34))
def test_runs_hold_exactly_the_schedules_tokens(selected_tokens):
    budget = token_budget(
        kv_len=33, block_size=4, selected_tokens=selected_tokens, sink_blocks=2, local_blocks=2
    )
    schedule = schedule_tokens(torch.arange(9.0).sin().view(1, 1, 9), budget)
    runs = token_runs(schedule.scored_blocks.flatten().tolist(), budget)
    assert [i for a, b in runs for i in range(a, b)] == schedule.token_ids.flatten().tolist()


def on_meta(kv_len):
    """q and a cache on the meta device, which no operator but indexing mixes with the CPU."""
    k, v = torch.empty(2, 2, 2, kv_len, 64, device="meta", dtype=torch.float16)
    return torch.empty(2, 8, 1, 64, device="meta", dtype=torch.float16), KVCache(k, v)


# With a block cut, with none, and with so many that they are ranked otherwise.
@pytest.mark.parametrize("kv_len", [1000, 1024, 70_000])
@pytest.mark.parametrize("selector", [*(s.name for s in SELECTORS), "witness=0.5,drift=0.5"])
def test_a_step_stays_on_the_caches_device(selector, kv_len):
    q, cache = on_meta(kv_len)
    scheduler = Scheduler(cache.k[:, :, : kv_len - 1], 256, selector=selector)
    scheduler.append(cache.k[:, :, kv_len - 1 :])
    schedule = scheduler.schedule(q)
    outputs = [attention_path_named(name).prepare(q, cache, schedule)() for name in COPYING]
    # Flex has no kernel there; what it would be given is made in loading.
    flex = attention_path_named("flex").prepare(q, cache, schedule)
    given = [*flex._inputs, *(tensor for table in flex._tables for tensor in table)]
    made = (schedule.token_ids, schedule.scored_blocks, prepare_dense(q, cache)())
    assert {tensor.device.type for tensor in (*outputs, *given, *made)} == {"meta"}


def test_candidate_rows_stay_on_the_scores_device():
    scores, rule = torch.empty(1000, device="meta"), dict(sink_blocks=1, local_blocks=2)
    for rows in (candidate_row, candidate_rows):
        found = rows(scores, **rule, salience_blocks=8, max_candidate_blocks=16)
        assert (found.device.type, found.shape[-1]) == ("meta", 16)


@pytest.mark.parametrize("selector", [s.name for s in SELECTORS])
@by_path
def test_tensors_that_want_gradients_are_served_as_others_are(path, selector):
    w = workload()
    served = []
    for wanted in (False, True):
        q, k, v = (t.clone().requires_grad_(wanted) for t in (w.q, w.cache.k, w.cache.v))
        scheduler = Scheduler(k[:, :, :-1], 30, selector=selector, block_size=8)
        scheduler.append(k[:, :, -1:])
        served.append(path.prepare(q, KVCache(k, v), scheduler.schedule(q))())
    assert torch.equal(*served)
    assert not served[1].requires_grad


def test_public_functions_take_tensors_that_want_gradients():
    w = workload()
    q, k, v = (t.clone().requires_grad_() for t in (w.q, w.cache.k, w.cache.v))
    ids = select_tokens(q, k, 30, block_size=8)
    assert torch.equal(sparse_decode(q, k, v, ids), sparse_decode(w.q, *_tensors(w), ids))
    assert torch.equal(dense_decode(q, k, v), dense_decode(w.q, *_tensors(w)))
    drift = centroid_drift(block_centroids(k, 8))
    assert torch.equal(drift, centroid_drift(block_centroids(w.cache.k, 8)))


def _tensors(w):
    return w.cache.k, w.cache.v
