"""What holds of every selector and of every way to attend, for any shapes, types and keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from topokv import KVCache, Scheduler, dense_decode, select_tokens, sparse_decode
from topokv.attention import ATTENTION_PATHS
from topokv.scheduling import SELECTORS, schedule_tokens, token_budget
from topokv.scheduling.schedule import SHARINGS

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BROKEN = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 3e4])

by_selector = pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: s.name)
by_selector_of_blocks_alone = pytest.mark.parametrize(
    "selector", [s for s in SELECTORS if not s.from_prompt], ids=lambda s: s.name
)
by_path = pytest.mark.parametrize("path", ATTENTION_PATHS, ids=lambda p: p.name)
seeds = st.integers(0, 2**32)


@st.composite
def caches(draw):
    """q, k and v of any shape that is allowed; two tokens in five repeat an earlier one."""
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    kv_len, head_dim = draw(st.integers(1, 40)), draw(st.sampled_from([1, 8]))
    generator = torch.Generator().manual_seed(draw(seeds))
    dtype = draw(st.sampled_from(DTYPES))
    k, v = torch.randn(2, batch, kv_heads, kv_len, head_dim, generator=generator).to(dtype)
    again = torch.rand(kv_len, generator=generator) < 0.4
    k[:, :, again] = k[:, :, :1].clone()
    q = torch.randn(batch, kv_heads * group, 1, head_dim, generator=generator).to(dtype)
    return q, k, v


@st.composite
def cuts(draw):
    """How a selection is asked for, its budget as a share of the tokens there are."""
    return {
        "share": draw(st.floats(0.01, 1.0)),
        "block_size": draw(st.sampled_from([1, 2, 3, 5, 8, 64])),
        "sink_blocks": draw(st.integers(0, 2)),
        "local_blocks": draw(st.integers(0, 2)),
        "sharing": draw(st.sampled_from([None, *SHARINGS])),
    }


def tokens_of(cut, kv_len):
    """The budget in tokens, and the other settings."""
    rest = {name: value for name, value in cut.items() if name != "share"}
    return max(1, int(cut["share"] * kv_len)), rest


def assert_valid(ids, selected_tokens, kv_len):
    assert ids.shape[-1] == selected_tokens and ids.dtype == torch.int64
    assert bool((ids[..., 1:] > ids[..., :-1]).all())
    assert int(ids.min()) >= 0 and bool((ids[..., -1] == kv_len - 1).all())


@by_selector
@given(cache=caches(), cut=cuts(), broken=st.booleans(), seed=seeds)
def test_selections_are_exact_and_repeat_whatever_the_keys_hold(selector, cache, cut, broken, seed):
    q, k, _ = cache
    if broken:
        generator = torch.Generator().manual_seed(seed)
        hit = torch.rand(k.shape, generator=generator) < 0.1
        k[hit] = BROKEN[torch.randint(5, (int(hit.sum()),), generator=generator)].to(k.dtype)
    selected_tokens, rest = tokens_of(cut, k.shape[2])
    before, state = k.clone(), torch.get_rng_state()
    ids = select_tokens(q, k, selected_tokens, selector=selector, **rest)
    assert_valid(ids, selected_tokens, k.shape[2])
    assert torch.equal(ids, select_tokens(q, k, selected_tokens, selector=selector, **rest))
    torch.testing.assert_close(k, before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)


@by_selector_of_blocks_alone
@given(cache=caches(), cut=cuts(), start=st.floats(0.0, 1.0))
def test_a_cache_grown_by_tokens_is_scheduled_as_one_seen_at_once(selector, cache, cut, start):
    q, k, _ = cache
    kv_len = k.shape[2]
    selected_tokens, rest = tokens_of(cut, kv_len)
    first = max(1, int(start * kv_len))
    grown = Scheduler(k[:, :, :first], selected_tokens, selector=selector, **rest)
    for token in range(first, kv_len):
        grown.append(k[:, :, token : token + 1])
    whole = Scheduler(k, selected_tokens, selector=selector, **rest)
    scores = [selector.score(scheduler.summary, q) for scheduler in (grown, whole)]
    torch.testing.assert_close(*scores, rtol=0, atol=0, equal_nan=True)
    chosen, expected = grown.schedule(q), whole.schedule(q)
    assert_valid(chosen.token_ids, selected_tokens, kv_len)
    assert torch.equal(chosen.token_ids, expected.token_ids)


def masked_dense(q, k, v, token_ids):
    """Dense attention under a boolean mask of the selected tokens, K and V repeated by hand."""
    heads = q.shape[1]
    mask = torch.zeros(q.shape[0], heads, 1, k.shape[2], dtype=torch.bool)
    mask.scatter_(
        -1, token_ids.repeat_interleave(heads // token_ids.shape[1], 1).unsqueeze(2), True
    )
    keys, values = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
    return scaled_dot_product_attention(q, keys, values, mask)


def assert_as_good(result, reference, exact):
    """`result` is as near to float64's `exact` as `reference` is, four times over and roundings.

    As `topokv.bench.verify` has it: of so few numbers the reference's own error may be small by
    luck. In float64 it has none to go by, only roundings.
    """
    own_error = float((reference.double() - exact).abs().max())
    roundings = 16 if result.dtype == torch.float64 else 4
    rounding = torch.finfo(result.dtype).eps * max(1.0, float(exact.abs().max()))
    error = float((result.double() - exact).abs().max())
    assert error <= 4 * own_error + roundings * rounding


def random_ids(q, k, selected_tokens, groups, seed):
    """Any ascending selection for each request and group."""
    order = torch.rand(
        q.shape[0], groups, k.shape[2], generator=torch.Generator().manual_seed(seed)
    )
    return order.argsort(dim=-1)[..., :selected_tokens].sort(dim=-1).values


@by_path
@given(cache=caches(), cut=cuts(), seed=seeds)
def test_sparse_equals_dense_under_the_same_mask(path, cache, cut, seed):
    q, k, v = cache
    selected_tokens, rest = tokens_of(cut, k.shape[2])
    groups = {None: k.shape[1], "request": 1, "kv-head": k.shape[1], "q-head": q.shape[1]}
    rest["kv_len"], width = k.shape[2], groups[rest.pop("sharing")]
    budget = token_budget(selected_tokens=selected_tokens, **rest)
    scores = torch.rand(
        q.shape[0],
        width,
        -(-k.shape[2] // budget.block_size),
        generator=torch.Generator().manual_seed(seed),
    )
    schedule = schedule_tokens(scores, budget)
    if path.name == "flex" and q.dtype == torch.float64:
        with pytest.raises(ValueError, match="^attention 'flex' takes float16, bfloat16 or "):
            path.prepare(q, KVCache(k, v), schedule)
        return
    attended = path.prepare(q, KVCache(k, v), schedule)()
    reference = masked_dense(q, k, v, schedule.token_ids)
    exact = masked_dense(q.double(), k.double(), v.double(), schedule.token_ids)
    assert attended.shape == q.shape and attended.dtype == q.dtype
    assert_as_good(attended, reference, exact)


@pytest.mark.parametrize("sharing", SHARINGS)
@given(cache=caches(), part=st.floats(0.01, 1.0), seed=seeds)
def test_sparse_decode_equals_dense_under_any_mask(sharing, cache, part, seed):
    q, k, v = cache
    groups = {"request": 1, "kv-head": k.shape[1], "q-head": q.shape[1]}[sharing]
    ids = random_ids(q, k, max(1, int(part * k.shape[2])), groups, seed)
    reference = masked_dense(q, k, v, ids)
    exact = masked_dense(q.double(), k.double(), v.double(), ids)
    attended = sparse_decode(q, k, v, ids)
    assert_as_good(attended, reference, exact)
    padded = torch.nn.functional.pad(ids, (0, 3), value=-1)
    assert_as_good(sparse_decode(q, k, v, padded), reference, exact)


@given(caches(), cuts())
def test_a_full_budget_attends_as_dense_does(cache, cut):
    q, k, v = cache
    _, rest = tokens_of(cut, k.shape[2])
    ids = select_tokens(q, k, k.shape[2], **rest)
    exact = dense_decode(q.double(), k.double(), v.double())
    assert_as_good(sparse_decode(q, k, v, ids), dense_decode(q, k, v), exact)


@given(caches(), st.lists(st.integers(-3, 45), min_size=0, max_size=6))
def test_token_ids_are_attended_or_refused_never_anything_else(cache, ids):
    q, k, v = cache
    there = [i for i in ids if i != -1]
    fine = there and len(set(there)) == len(there) and all(0 <= i < k.shape[2] for i in there)
    if fine:
        assert bool(sparse_decode(q, k, v, torch.tensor(ids)).isfinite().all())
    else:
        with pytest.raises(ValueError, match=r"^token_ids must "):
            sparse_decode(q, k, v, torch.tensor(ids, dtype=torch.int64))
