"""What one process measures: right rows, wrong rows, rows that do not fit, and no allocation."""

import sys
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from topokv.attention import ATTENTION_PATHS, flex, prepare_dense
from topokv.attention.paths import AttentionPath
from topokv.bench import Settings, grid
from topokv.bench.worker import cell as cell_module
from topokv.bench.worker import replays
from topokv.bench.worker.device import Context, resolve
from topokv.bench.worker.process import Process
from topokv.bench.worker.replays import Sparse, copies, rotated
from topokv.bench.worker.sources import describe
from topokv.bench.worker.verify import mismatch
from topokv.inputs.workload import gaussian
from topokv.machine import choose_modes
from topokv.scheduling import mixture_of, schedule_tokens, token_budget
from topokv.scheduling.scheduler import select_tokens
from topokv.tensors import KVCache
from topokv.timing import CpuClock

SMALL = Settings(
    kv=("gaussian",),
    seq_len=300,
    selected_tokens=(64, 256),
    heads=4,
    kv_heads=2,
    head_dim=16,
    block_size=16,
    rounds=8,
    warmup=1,
    max_seconds=10.0,
    attention=("gather",),
)


def process(settings, *, number=0):
    """A process on a CPU whose caches are flushed by a megabyte, to be quick."""
    plan = grid(
        settings,
        describe(settings),
        dtype="float32",
        selectors=["drift", "witness"],
        sharing_of=lambda name: mixture_of(name).sharing,
        attention=["gather", "blocks", "flex"],
    )
    cpu = torch.device("cpu")
    clock = CpuClock(1 << 20)
    context = Context(cpu, "cpu", torch.float32, clock, choose_modes("cpu"), 1 << 20, 1 << 25)
    return Process(plan, settings, context, number)


def test_a_cell_gives_each_row_all_of_its_times():
    with torch.inference_mode():
        drift, witness = process(SMALL).measure(1)
    assert {part.status for part in (drift, witness)} == {"ok"}
    assert set(witness.samples) == {
        "dense_sdpa_ms",
        "dense_again_ms",
        "sparse_selected_ms",
        "dense_warm_ms",
        "sparse_warm_ms",
        "score_ms",
        "summary_ms",
        "update_ms",
        "copy_ms",
        "read_ms",
    }
    paired = ("dense_sdpa_ms", "dense_again_ms", "sparse_selected_ms")
    assert len({len(witness.samples[name]) for name in paired}) == 1
    assert drift.samples["dense_sdpa_ms"] == witness.samples["dense_sdpa_ms"]
    assert (witness.dense_backend, witness.sparse_backend) == ("flash", "flash")
    assert witness.facts["density"] == pytest.approx(256 / 300)
    assert witness.facts["selected_bytes"] == pytest.approx(2 * 2 * 256 * 16 * 4)
    # Two vectors a block of each head, and how many tokens each of them stands for.
    assert witness.facts["summary_bytes"] == 2 * 2 * 19 * 16 * 4 + 2 * 19 * 4
    assert set(witness.flags) == {"cache-resident", "gaussian"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not count minor faults")
def test_a_timed_call_allocates_no_new_memory():
    settings = replace(SMALL, seq_len=4096, selected_tokens=(1024,), heads=16, kv_heads=16)
    with torch.inference_mode():
        parts = process(replace(settings, block_size=64, head_dim=64, rounds=7)).measure(0)
    assert [part.facts["minor_faults"] for part in parts] == [0, 0]


def test_where_no_block_is_scored_the_row_says_so():
    with torch.inference_mode():
        parts = process(replace(SMALL, selected_tokens=(48,))).measure(0)
    assert all("no-scored-block" in part.flags for part in parts)


def test_a_row_whose_attention_is_wrong_is_not_timed(monkeypatch):
    class Broken:
        def load(self, q, cache, schedule):
            attend = prepare_dense(q, cache)
            return lambda: attend() * 1.01

    path = AttentionPath("gather", Broken)
    monkeypatch.setattr(cell_module, "attention_path_named", lambda name: path)
    with torch.inference_mode():
        parts = process(SMALL).measure(0)
    assert {(part.status, part.step) for part in parts} == {("failed", "verify")}
    assert parts[0].reason.startswith("request 0, kv head 0: sparse differs from masked dense by ")
    assert parts[0].samples == {}


def test_a_row_whose_attention_can_not_be_had_fails_alone(monkeypatch):
    line = "attention 'flex' needs a C++ compiler (g++ or CXX), and none was found"

    def compiled(layout):
        raise ValueError(line)

    monkeypatch.setattr(flex, "compiled", compiled)
    with torch.inference_mode():
        parts = process(replace(SMALL, attention=("flex", "blocks"), rounds=3)).measure(0)
    assert [part.status for part in parts] == ["ok", "failed", "ok"] * 2
    failed = {(part.step, part.reason) for part in parts if part.status == "failed"}
    assert failed == {("benchmark", line)}
    assert all(part.samples["sparse_selected_ms"] for part in parts if part.status == "ok")


def test_what_does_not_fit_is_oom_before_it_is_allocated_and_the_next_cell_goes_on():
    running = process(replace(SMALL, seq_len=2**50, selected_tokens=(64,)))
    parts = running.measure(0)
    assert {part.status for part in parts} == {"oom"}
    assert parts[0].reason.startswith("K and V need 288230376.2 GB, ")
    running.plan = process(SMALL).plan
    with torch.inference_mode():
        assert {part.status for part in running.measure(0)} == {"ok"}


def test_any_other_fault_is_the_rows_and_names_its_kind(monkeypatch):
    monkeypatch.setattr("topokv.bench.worker.process.load_for", lambda *_: 1 / 0)
    parts = process(SMALL).measure(0)
    assert {(p.status, p.reason) for p in parts} == {
        ("failed", "ZeroDivisionError: division by zero")
    }


def test_a_real_cache_also_tells_what_is_kept_and_only_the_first_process_works_it_out():
    settings = Settings(
        kv=("sample",),
        layers=(10,),
        selected_tokens=(512, 2048),
        selectors=("witness", "random", "oracle"),
        rounds=1,
        warmup=0,
        attention=("gather",),
    )
    first = process(settings)
    with torch.inference_mode():
        witness, random, oracle = first.measure(0)
        whole = first.measure(1)
        later = process(settings, number=1).measure(0)
    assert 0 < random.facts["recall"] < min(witness.facts["recall"], oracle.facts["recall"]) < 1
    assert (random.facts["gap_closed"], oracle.facts["gap_closed"]) == (0, 1)
    assert 0.5 < witness.facts["gap_closed"] < 1.05
    # The first captured query has fewer than 2,048 tokens before it.
    assert "recall" not in whole[0].facts
    assert "recall" not in later[0].facts


@pytest.mark.parametrize("sharing", ["request", "kv-head", "q-head"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("path", ATTENTION_PATHS, ids=lambda path: path.name)
def test_every_way_to_attend_matches_masked_dense(path, dtype, sharing):
    workload = gaussian(
        batch=2, num_q_heads=4, num_kv_heads=2, kv_len=131, head_dim=16, dtype=dtype, seed=3
    )
    budget = token_budget(
        kv_len=131, block_size=16, selected_tokens=70, sink_blocks=1, local_blocks=2
    )
    groups = {"request": 1, "kv-head": 2, "q-head": 4}[sharing]
    scores = torch.rand(2, groups, 9, generator=torch.Generator().manual_seed(0))
    schedule = schedule_tokens(scores, budget)
    if path.name == "flex" and dtype == torch.float64:
        with pytest.raises(ValueError, match="^attention 'flex' takes float16, bfloat16 or "):
            path.prepare(workload.q, workload.cache, schedule)
        return
    output = path.prepare(workload.q, workload.cache, schedule)()
    assert mismatch(output, workload.q, workload.cache, schedule.token_ids) is None
    # One token of one schedule exchanged for another is found, in any type.
    other = schedule.token_ids.clone()
    absent = sorted(set(range(131)) - set(other[1, -1].tolist()))[:8]
    other[1, -1, :8] = torch.tensor(absent)
    assert mismatch(output, workload.q, workload.cache, other) is not None


def test_ids_that_are_not_distinct_are_no_mask():
    workload = gaussian(num_q_heads=1, num_kv_heads=1, kv_len=8, head_dim=4)
    output = prepare_dense(workload.q, workload.cache)()
    found = mismatch(output, workload.q, workload.cache, torch.tensor([[[1, 1]]]))
    assert found == "request 0, kv head 0: 2 token ids are not distinct"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_an_error_and_auto_takes_the_cpu():
    assert resolve("auto") == resolve("cpu") == torch.device("cpu")
    for asked in ("cuda", "cuda:1", "rocm"):
        with pytest.raises(ValueError, match=rf"^device '{asked}' is not there: torch "):
            resolve(asked)
    with pytest.raises(ValueError, match=r"^device 'auto' found no GPU, and one is required: "):
        resolve("auto", require_device=True)


def rotation_of(count, caches):
    workload = gaussian(num_q_heads=2, num_kv_heads=1, kv_len=256, head_dim=8)
    ids = select_tokens(workload.q, workload.cache.k, 128, block_size=16, selector="random")
    budget = token_budget(
        kv_len=256, block_size=16, selected_tokens=128, sink_blocks=1, local_blocks=2
    )
    schedule = schedule_tokens(torch.zeros(1, ids.shape[1], 16), budget)
    row = Sparse("sparse", "gather", schedule, lambda: lambda: None, 128 * 8 * 2 * 4)
    return rotated(row, workload, copies(workload.cache, caches, None), count, seed=1)


def test_a_graphs_calls_draw_their_blocks_anew_and_walk_through_the_copies():
    calls = rotation_of(6, caches=2)
    outputs = [call() for call in calls]
    assert len(calls) == 6
    assert all(not torch.equal(outputs[0], output) for output in outputs[1:])


def test_a_graph_that_cannot_be_captured_costs_its_own_columns_alone(monkeypatch):
    def refused(*_):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    running = process(SMALL)
    running.context = replace(running.context, modes=choose_modes("cuda"))
    monkeypatch.setattr(replays, "_graph_times", refused)
    monkeypatch.setattr(replays, "WallClock", lambda clock, device: clock)
    with torch.inference_mode():
        parts = running.measure(0)
    assert {part.status for part in parts} == {"ok"}
    assert "no-graph: operation not permitted when stream is capturing" in parts[0].flags
    assert len(parts[0].samples["dense_wall_ms"]) == len(parts[0].samples["sparse_wall_ms"])
    assert "sparse_graph_ms" not in parts[0].samples


def test_copies_take_no_more_than_a_quarter_of_free_memory():
    cache = gaussian(num_q_heads=1, num_kv_heads=1, kv_len=64, head_dim=8).cache
    assert len(copies(cache, 5, None)) == 5
    assert len(copies(cache, 5, free=8 * cache.num_bytes)) == 3
    assert len(copies(cache, 5, free=0)) == 1
    assert copies(cache, 5, free=0)[0] is cache


def test_what_is_timed_stays_on_the_caches_device():
    """On fake tensors "cuda" needs no device, and an operation that mixes devices raises."""
    with FakeTensorMode():
        k = torch.empty(2, 2, 131, 16, device="cuda")
        cache, q = KVCache(k, torch.empty_like(k)), torch.empty(2, 4, 1, 16, device="cuda")
        output = prepare_dense(q, cache)()
        assert (output.device.type, tuple(output.shape)) == ("cuda", (2, 4, 1, 16))


def test_a_cache_on_another_device_than_the_query_is_refused():
    with FakeTensorMode():
        k = torch.empty(1, 1, 8, 4, device="cuda")
        with pytest.raises(ValueError, match=r"^q must be on k's device cuda:0, got cpu$"):
            prepare_dense(torch.empty(1, 1, 1, 4), KVCache(k, k))
