"""What must hold on every device. A backend's folder names its device and inherits the checks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from topokv import dense_decode, select_tokens, sparse_decode
from topokv.attention import ATTENTION_PATHS, prepare_dense
from topokv.bench import Settings
from topokv.bench.worker import process as worker
from topokv.bench.worker.device import Context
from topokv.bench.worker.verify import mismatch
from topokv.inputs.workload import gaussian
from topokv.scheduling import SELECTORS, Scheduler
from topokv.scheduling.schedule import SHARINGS
from topokv.tensors import KVCache
from topokv.timing import attention_backend

HALF = (torch.float16, torch.bfloat16)
# (num_q_heads, num_kv_heads): as many, a group of four, one for all.
HEADS = ((4, 4), (8, 2), (4, 1))
# Ways to attend that a GPU has: `csr` is for CPUs.
PATHS = [path for path in ATTENTION_PATHS if path.name != "csr"]
by_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
# Flex compiles a kernel for each type and each number of heads, so that a few of them must do.
SPARSE = [
    pytest.param(path, dtype, heads, id=f"{path.name}-{dtype}-{heads}")
    for path in PATHS
    for dtype in (*HALF, torch.float32)
    for heads in HEADS
    if path.name != "flex" or dtype == torch.float16 or heads == (8, 2)
]


def skip_items(items: list[pytest.Item], folder: Path, reason: str | None) -> None:
    """Mark the tests of a backend's folder as skipped where its device can't be used.

    Where a device was promised nothing is skipped, so that its absence is seen.
    """
    if reason is None or os.environ.get("TOPOKV_REQUIRE_DEVICE"):
        return
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.skip(reason=reason))


def workload(device, dtype, heads=(8, 2), batch=2, kv_len=1000, head_dim=64):
    """A Gaussian workload whose last block is partial."""
    return gaussian(
        batch=batch,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
    )


def reference(q, k, v):
    """Dense attention in float64 on the CPU, written out."""
    q, k, v = (tensor.double().cpu() for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


def whole_numbers(device, heads, kv_len=1000, head_dim=16):
    """q and k of small whole numbers, whose sums are exact in any order and on any device."""
    generator = torch.Generator().manual_seed(7)

    def draw(num_heads, tokens):
        size = (2, num_heads, tokens, head_dim)
        return torch.randint(-8, 9, size, generator=generator).float().to(device)

    return draw(heads[0], 1), draw(heads[1], kv_len)


class DeviceChecks:
    """The checks; a subclass has a fixture `device` with the torch.device to use."""

    @pytest.mark.parametrize("dtype", HALF)
    @pytest.mark.parametrize("heads", HEADS)
    def test_dense_equals_float64_on_the_cpu(self, device, dtype, heads):
        w = workload(device, dtype, heads)
        found = dense_decode(w.q, w.cache.k, w.cache.v)
        assert found.device == w.q.device
        expected = reference(w.q, w.cache.k, w.cache.v)
        # Outputs are means of about a thousand values: all are well under 1.
        error = (found.double().cpu() - expected).abs().max()
        assert error < 2 * torch.finfo(dtype).eps

    @pytest.mark.parametrize(("path", "dtype", "heads"), SPARSE)
    def test_sparse_equals_dense_under_the_same_mask(self, device, path, dtype, heads):
        w = workload(device, dtype, heads)
        schedule = Scheduler(w.cache.k, 300, selector="witness").schedule(w.q)
        attended = path.prepare(w.q, w.cache, schedule)()
        assert mismatch(attended, w.q, w.cache, schedule.token_ids) is None

    @pytest.mark.parametrize("sharing", SHARINGS)
    @by_path
    def test_sparse_equals_dense_whoever_shares_a_schedule(self, device, path, sharing):
        w = workload(device, torch.float16)
        scheduler = Scheduler(w.cache.k, 300, selector="witness", sharing=sharing)
        schedule = scheduler.schedule(w.q)
        attended = path.prepare(w.q, w.cache, schedule)()
        assert mismatch(attended, w.q, w.cache, schedule.token_ids) is None

    @pytest.mark.parametrize("dtype", HALF)
    def test_full_budget_equals_dense(self, device, dtype):
        w = workload(device, dtype)
        ids = select_tokens(w.q, w.cache.k, w.cache.kv_len)
        sparse = sparse_decode(w.q, w.cache.k, w.cache.v, ids)
        torch.testing.assert_close(sparse, dense_decode(w.q, w.cache.k, w.cache.v))

    def test_each_request_of_a_batch_has_its_own_schedule(self, device):
        w = workload(device, torch.float16, batch=3)
        ids = select_tokens(w.q, w.cache.k, 300, selector="witness")
        together = sparse_decode(w.q, w.cache.k, w.cache.v, ids)
        for i in range(3):
            one = slice(i, i + 1)
            q, k, v = w.q[one], w.cache.k[one], w.cache.v[one]
            assert torch.equal(select_tokens(q, k, 300, selector="witness"), ids[one])
            torch.testing.assert_close(sparse_decode(q, k, v, ids[one]), together[one])

    @pytest.mark.parametrize("selector", ["drift", "streaming", "mean-pool", "random"])
    def test_selection_equals_the_cpus(self, device, selector):
        q, k = whole_numbers(device, (4, 2))
        found = select_tokens(q, k, 400, selector=selector)
        assert found.device == k.device
        assert torch.equal(found.cpu(), select_tokens(q.cpu(), k.cpu(), 400, selector=selector))

    def test_attention_backend_is_told(self, device):
        w = workload(device, torch.float16)
        told = attention_backend(prepare_dense(w.q, w.cache))
        assert told in ("flash", "efficient", "cudnn", "math")

    def test_random_state_is_untouched(self, device):
        on_gpu = device.type == "cuda"
        before = torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None
        w = workload(device, torch.float16)
        for selector in SELECTORS:
            select_tokens(w.q, w.cache.k, 300, selector=selector.name)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert not on_gpu or torch.equal(torch.cuda.get_rng_state(device), before[1])


class GpuChecks(DeviceChecks):
    """What holds on a device with a memory of its own, and where there may be several."""

    def test_a_cache_is_not_spread_over_devices(self, device):
        w = workload(device, torch.float16)
        with pytest.raises(ValueError, match="v must be on k's device"):
            KVCache(w.cache.k, w.cache.v.cpu())

    def test_another_device_index_is_used_throughout(self):
        if torch.cuda.device_count() < 2:
            pytest.skip("there is one device here, and the check needs two")
        second = torch.device("cuda", 1)
        w = workload(second, torch.float16)
        ids = select_tokens(w.q, w.cache.k, 300)
        assert ids.device == second
        assert sparse_decode(w.q, w.cache.k, w.cache.v, ids).device == second

    def test_out_of_memory_becomes_a_row(self, device):
        settings = Settings(device=f"{'rocm' if torch.version.hip else 'cuda'}:{device.index}")
        _, plan = worker._plan(settings)
        context = Context.create(device, torch.float16, "off")
        torch.cuda.empty_cache()
        # No more than is taken already: the workload can't fit.
        taken = torch.cuda.memory_reserved(device) / torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(taken, device)
        try:
            parts = worker.Bench(plan, settings, context, process=0).measure(0)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        assert {part.status for part in parts} == {"oom"}
        assert "out of memory" in parts[0].reason
