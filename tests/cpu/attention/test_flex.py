"""FlexAttention as a way to attend: its lists of blocks, and what it refuses."""

import pytest
import torch

from topokv.attention import attention_path_named, flex
from topokv.attention.flex import FlexDecode, Layout, block_lists, hole
from topokv.bench.worker.verify import mismatch
from topokv.inputs.workload import gaussian
from topokv.scheduling import CandidateSchedule, schedule_tokens, token_budget
from topokv.tensors import KVCache


def workload(dtype=torch.float32, head_dim=16, kv_len=131):
    return gaussian(
        batch=2, num_q_heads=8, num_kv_heads=2, kv_len=kv_len, head_dim=head_dim, dtype=dtype
    )


def scheduled(kv_len, selected_tokens, groups=2, block_size=16, sink_blocks=1):
    """A schedule of random blocks for two requests."""
    budget = token_budget(
        kv_len=kv_len,
        block_size=block_size,
        selected_tokens=selected_tokens,
        sink_blocks=sink_blocks,
        local_blocks=2,
    )
    generator = torch.Generator().manual_seed(0)
    return schedule_tokens(
        torch.rand(2, groups, -(-kv_len // block_size), generator=generator), budget
    )


@pytest.fixture
def on_gpu(monkeypatch):
    """Layouts as on a GPU."""
    monkeypatch.setattr(Layout, "on_cpu", False)


@pytest.mark.parametrize(
    ("kv_len", "selected_tokens", "scored", "masked", "whole", "left_out"),
    [
        # Of a schedule whose parts are whole no block is masked.
        (40, 20, [3, 5], [], [3, 5, 0, 8, 9], (32, 32)),
        # The last ranked of the scored blocks is cut.
        (40, 18, [3, 5], [5], [3, 0, 8, 9], (22, 24)),
        # The cache's last block is partial.
        (42, 18, [3], [10], [3, 0, 8, 9], (32, 32)),
        (42, 17, [3], [3, 10], [0, 8, 9], (15, 16)),
        # Too few tokens for all of the sinks, for all of the locals, for all of the newest block.
        (42, 12, [], [0, 10], [8, 9], (2, 4)),
        (42, 9, [], [8, 10], [9], (32, 33)),
        (42, 1, [], [10], [], (40, 41)),
    ],
)
def test_each_block_is_in_one_list_and_one_run_of_tokens_is_left_out(
    kv_len, selected_tokens, scored, masked, whole, left_out
):
    budget = token_budget(
        kv_len=kv_len, block_size=4, selected_tokens=selected_tokens, sink_blocks=1, local_blocks=2
    )
    schedule = CandidateSchedule(torch.tensor(scored, dtype=torch.int64).view(1, 1, -1), budget)
    assert [blocks.flatten().tolist() for blocks in block_lists(schedule)] == [masked, whole]
    assert tuple(int(end) for end in hole(schedule)) == left_out


@pytest.mark.parametrize("sink_blocks", [0, 1, 3])
@pytest.mark.parametrize("kv_len", [33, 36])
def test_lists_and_hole_hold_exactly_the_schedules_tokens(kv_len, sink_blocks):
    for selected_tokens in range(1, kv_len + 1):
        schedule = scheduled(kv_len, selected_tokens, block_size=4, sink_blocks=sink_blocks)
        blocks = torch.cat(block_lists(schedule), dim=-1)
        tokens = (blocks.unsqueeze(-1) * 4 + torch.arange(4)).flatten(-2)
        first, end = (bound.unsqueeze(-1) for bound in hole(schedule))
        inside = (tokens < kv_len) & ((tokens < first) | (tokens >= end))
        found = tokens.where(inside, kv_len).sort(dim=-1).values[..., :selected_tokens]
        assert torch.equal(found, schedule.token_ids)
        assert torch.equal(inside.sum(dim=-1), torch.full((2, 2), selected_tokens))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("selected_tokens", [5, 40, 70, 131])
def test_what_a_gpu_is_given_attends_the_same(groups, selected_tokens):
    w = workload()
    schedule = scheduled(131, selected_tokens, groups)
    attend = FlexDecode().load(w.q, w.cache, schedule)
    assert mismatch(attend(), w.q, w.cache, schedule.token_ids) is None


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("groups", "block_size", "heads", "rows", "columns"),
    [(1, 16, 2, 16, 16), (2, 48, 2, 16, 16), (8, 64, 8, 16, 64), (2, 256, 2, 16, 64)],
)
def test_tiles_hold_a_heads_rows_and_divide_its_blocks(groups, block_size, heads, rows, columns):
    w = workload()
    layout = Layout.of(w.q, w.cache, scheduled(131, 70, groups, block_size))
    assert (layout.heads, layout.rows, layout.columns) == (heads, rows, columns)


def test_a_group_of_many_query_heads_has_room_in_a_tile():
    q, k = torch.empty(1, 72, 1, 16), torch.empty(1, 1, 131, 16)
    layout = Layout.of(q, KVCache(k, k), scheduled(131, 70, 1))
    assert (layout.heads, layout.rows) == (1, 128)


def test_lists_are_kept_from_step_to_step_and_widened_seldom():
    w = workload(kv_len=400)
    attend = FlexDecode()
    places = []
    for kv_len in range(1, 401):
        cache = KVCache(w.cache.k[:, :, :kv_len], w.cache.v[:, :, :kv_len])
        attend.load(w.q, cache, scheduled(kv_len, min(kv_len, 70)))
        places.append(attend._indices.data_ptr())
    # For 8 blocks, 16 and 32, all of which were alive when the next one was made.
    assert len(set(places)) == 3
    assert attend._indices.shape == (2, 2, 2, 1, 32)


def refusal(w, schedule):
    with pytest.raises(ValueError) as refused:
        attention_path_named("flex").prepare(w.q, w.cache, schedule)
    return str(refused.value)


def test_what_there_is_no_kernel_for_is_refused_with_a_remedy():
    assert refusal(workload(torch.float64), scheduled(131, 70)) == (
        "attention 'flex' takes float16, bfloat16 or float32, got float64; use another --attention"
    )


@pytest.mark.usefixtures("on_gpu")
def test_what_a_gpu_has_no_kernel_for_is_refused_with_a_remedy():
    assert refusal(workload(head_dim=8), scheduled(131, 70)) == (
        "attention 'flex' takes a head_dim of at least 16 on a GPU, got 8; use another --attention"
    )
    assert refusal(workload(), scheduled(131, 70, block_size=24)) == (
        "attention 'flex' takes a block_size that is a multiple of 16 on a GPU, got 24; "
        "change --block-size or use another --attention"
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "LoweringException: InvalidCxxCompiler: No working C++ compiler found\n  target: flex",
            "attention 'flex' needs a C++ compiler (g++ or CXX), and none was found; "
            "use another --attention",
        ),
        (
            "TritonMissing: Cannot find a working triton installation.\n\nSet TORCHDYNAMO_VERBOSE",
            "attention 'flex' needs Triton, and none was found; use another --attention",
        ),
        (
            "backend='inductor' raised:\nCppCompileError: C++ compile error\n\nCommand:\ng++",
            "attention 'flex' could not be compiled: CppCompileError: C++ compile error; "
            "use another --attention",
        ),
        (
            "",
            "attention 'flex' could not be compiled: torch gave no reason; use another --attention",
        ),
    ],
)
def test_a_failure_to_compile_is_one_line(said, line):
    assert flex.why_not_compiled(said) == line
