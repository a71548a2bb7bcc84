"""The CPU's clock: `perf_counter_ns` around a call, caches made cold by reading past them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch

from topokv.timing.bandwidth import prepare_read


class CpuClock:
    """Times calls on the CPU; holds the one buffer whose reading makes the caches cold."""

    def __init__(self, flush_bytes: int) -> None:
        # Written once: pages never written all map to one page of zeros, which fits any cache.
        buffer = torch.ones(max(1, flush_bytes // 4), dtype=torch.float32)
        # Reading, not writing: dirty lines would be written back inside the next timed call.
        self._read = prepare_read(buffer)

    def cool(self) -> None:
        self._read()

    def milliseconds(self, call: Callable[[], object]) -> float:
        start = perf_counter_ns()
        call()
        return (perf_counter_ns() - start) / 1e6
