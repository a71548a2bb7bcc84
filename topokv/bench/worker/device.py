"""The device a run was asked for, and the clock, memory and flush size that belong to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from topokv.machine import Modes, backend_of, cache_bytes, choose_modes, physical_cores
from topokv.timing import (
    Clock,
    CpuClock,
    EventClock,
    cpu_flush_bytes,
    gpu_flush_bytes,
    peak_memory_bytes,
)


def resolve(asked: str, *, require_device: bool = False) -> torch.device:
    """The device for `auto`, `cpu`, `cuda[:i]` or `rocm[:i]`.

    Raises ValueError where a GPU is asked for and there is none that this build of torch can use:
    a benchmark that fell back would measure something else.
    """
    kind, _, index = asked.partition(":")
    there = torch.cuda.is_available()
    if kind == "cpu" or (kind == "auto" and not there):
        if kind == "auto" and require_device:
            raise ValueError(f"device 'auto' found no GPU, and one is required: {_why_none()}")
        return torch.device("cpu")
    if not there:
        raise ValueError(f"device {asked!r} is not there: {_why_none()}")
    if kind != "auto" and backend_of(torch.device("cuda")) != kind:
        raise ValueError(f"device {asked!r} is not there: this torch is built for the other kind")
    count = torch.cuda.device_count()
    number = int(index or 0)
    if number >= count:
        raise ValueError(f"device {asked!r} is not there: {count} found, numbered from 0")
    return torch.device("cuda", number)


def _why_none() -> str:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} is a build for CPUs; install one for the device"
    return f"torch {torch.__version__} sees no usable GPU; `topokv devices` says what it found"


def set_threads(threads: int | None) -> None:
    """Use `threads`, by default one for each physical core."""
    wanted = threads or physical_cores()
    if wanted:
        torch.set_num_threads(wanted)


@dataclass(frozen=True, slots=True)
class Context:
    """Where and how one process measures."""

    device: torch.device
    backend: str
    dtype: torch.dtype
    clock: Clock
    modes: Modes
    flush_bytes: int
    last_cache_bytes: int | None

    def peak_memory_bytes(self) -> int | None:
        """The most memory held so far: on a GPU the device's, else the process's."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return peak_memory_bytes()

    @staticmethod
    def create(device: torch.device, dtype: torch.dtype, graphs: str) -> Context:
        """The context of a device, its flush buffer allocated."""
        backend = backend_of(device)
        modes = choose_modes(backend, graphs=graphs)
        if device.type == "cpu":
            last = cache_bytes(3) or cache_bytes(2)
            flush = cpu_flush_bytes(cache_bytes(2), cache_bytes(3))
            return Context(device, backend, dtype, CpuClock(flush), modes, flush, last)
        last = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
        flush = gpu_flush_bytes(last)
        return Context(device, backend, dtype, EventClock(device, flush), modes, flush, last)


def free_bytes(device: torch.device) -> int | None:
    """Memory that a new tensor on the device may use; None where that can't be told."""
    if device.type == "cuda":
        # What earlier tensors left in torch's own cache is free for new ones.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
