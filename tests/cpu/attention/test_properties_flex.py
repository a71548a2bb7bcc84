"""FlexAttention compiled for real: what it attends, and how seldom it compiles.

Left to `nox -s fuzz`: a kernel takes seconds to compile, and a C++ compiler.
"""

import importlib
import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topokv import KVCache, Scheduler
from topokv.attention.flex import FlexDecode
from topokv.bench.worker.verify import mismatch
from topokv.inputs.workload import gaussian
from topokv.scheduling import schedule_tokens, token_budget

pytestmark = [
    pytest.mark.skipif(
        "TOPOKV_FUZZ_SECONDS" not in os.environ, reason="compiling takes too long for the suite"
    ),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here"
    ),
    pytest.mark.usefixtures("flex_compiled"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

# Query heads, KV heads, head_dim, block_size, schedules of a request, type: each is a kernel.
KERNELS = [
    (4, 4, 64, 64, 4, torch.float32),
    (8, 2, 64, 16, 1, torch.bfloat16),
    (6, 2, 80, 7, 6, torch.float16),
    (3, 1, 8, 3, 1, torch.float32),
]


def num_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@given(
    kv_len=st.integers(2, 1000),
    share=st.floats(0.01, 1.0),
    sink_blocks=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_compiled_equals_dense_under_the_same_mask(
    kernel, kv_len, share, sink_blocks, seed
):
    q_heads, kv_heads, head_dim, block_size, groups, dtype = kernel
    w = gaussian(
        batch=2,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        seed=seed,
    )
    budget = token_budget(
        kv_len=kv_len,
        block_size=block_size,
        selected_tokens=max(1, int(share * kv_len)),
        sink_blocks=sink_blocks,
        local_blocks=2,
    )
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, groups, -(-kv_len // block_size), generator=generator)
    schedule = schedule_tokens(scores, budget)
    attended = FlexDecode().load(w.q, w.cache, schedule)()
    assert mismatch(attended, w.q, w.cache, schedule.token_ids) is None


def test_a_cache_that_grows_is_attended_by_one_kernel():
    w = gaussian(num_q_heads=4, num_kv_heads=2, kv_len=1000, head_dim=32)
    attend, before = FlexDecode(), num_compiled()
    for kv_len in range(100, 701, 3):
        for selected_tokens in (50, 90):
            cache = KVCache(w.cache.k[:, :, :kv_len], w.cache.v[:, :, :kv_len])
            scheduler = Scheduler(cache.k, selected_tokens, selector="witness", block_size=16)
            schedule = scheduler.schedule(w.q)
            attended = attend.load(w.q, cache, schedule)()
            assert mismatch(attended, w.q, cache, schedule.token_ids) is None
    assert num_compiled() - before == 1


def test_a_cache_of_another_capacity_compiles_once_more_and_never_again():
    before = num_compiled()
    for capacity in (300, 400, 500, 600):
        w = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=capacity, head_dim=32)
        for kv_len in (capacity, capacity - 1, capacity - 100):
            cache = KVCache(w.cache.k[:, :, :kv_len], w.cache.v[:, :, :kv_len])
            schedule = Scheduler(cache.k, 90, block_size=16).schedule(w.q)
            FlexDecode().load(w.q, cache, schedule)()
    assert num_compiled() - before == 2


def test_without_a_compiler_one_line_says_so(monkeypatch, tmp_path):
    config = importlib.import_module("torch._inductor.config")
    # A kernel that an earlier run compiled would need no compiler.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    w = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=200, head_dim=24)
    schedule = Scheduler(w.cache.k, 90, block_size=16).schedule(w.q)
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(ValueError) as error:
        FlexDecode().load(w.q, w.cache, schedule)()
    assert str(error.value) == (
        "attention 'flex' needs a C++ compiler (g++ or CXX), and none was found; "
        "use another --attention"
    )
