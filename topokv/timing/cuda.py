"""Clocks of CUDA and ROCm devices: wall, events with a cold L2, and replayed graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import torch

from topokv.timing.rounds import Clock
from topokv.timing.sizes import captured_calls


class EventClock:
    """Times calls on a GPU by events recorded around them on the device's own stream.

    The flush runs on the device while the host goes on to launch, so a launch that is shorter than
    the flush does not show: this is the time on the device.
    """

    def __init__(self, device: torch.device, flush_bytes: int) -> None:
        self._device = device
        self._flush = torch.empty(max(1, flush_bytes // 4), dtype=torch.int32, device=device)

    def cool(self) -> None:
        self._flush.zero_()

    def milliseconds(self, call: Callable[[], object]) -> float:
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(start.elapsed_time(end))


class WallClock:
    """Times calls on a GPU by the host's clock, synchronised before and after: what a caller waits.

    Its calls find the L2 as the flush left it; the flush is waited for outside the timed region.
    """

    def __init__(self, flusher: Clock, device: torch.device) -> None:
        self._flusher = flusher
        self._device = device

    def cool(self) -> None:
        self._flusher.cool()

    def milliseconds(self, call: Callable[[], object]) -> float:
        torch.cuda.synchronize(self._device)
        start = perf_counter_ns()
        call()
        torch.cuda.synchronize(self._device)
        return (perf_counter_ns() - start) / 1e6


class GraphArm:
    """One arm captured as a CUDA graph that walks through rotated inputs; calling it replays it.

    `calls` are the same work on different inputs: between two uses of one input more bytes pass
    than the L2 holds, so a replay finds none of them there. The graph holds whole rotations.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], device: torch.device) -> None:
        self.num_calls = captured_calls(len(calls))
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            # Libraries set themselves up on the first call, which a capture cannot hold.
            for call in calls:
                call()
        torch.cuda.current_stream(device).wait_stream(stream)
        with torch.cuda.graph(self._graph):
            for index in range(self.num_calls):
                calls[index % len(calls)]()

    def __call__(self) -> None:
        self._graph.replay()
