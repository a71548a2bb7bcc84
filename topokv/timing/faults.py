"""What the operating system counted about this process; None where it does not count it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

try:
    import resource
except ImportError:  # Windows has no such module.
    resource = None  # type: ignore[assignment]


def minor_faults() -> int | None:
    """Page faults of this process so far that needed no disk: each is memory met the first time."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_memory_bytes() -> int | None:
    """The most memory that this process has held resident."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of CPU time at one moment, of all and of this process, its children counted in."""

    machine: float
    own: float
    wall: float

    @staticmethod
    def now(stat: Path = Path("/proc/stat")) -> CpuTimes | None:
        """The times now; None where the platform has no /proc/stat."""
        try:
            ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
            per_second = os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            return None
        # user nice system idle iowait irq softirq steal: all but the two kinds of idle are load.
        busy = sum(ticks) - ticks[3] - ticks[4]
        own = sum(os.times()[:4])  # user and system time, of this process and of its children
        return CpuTimes(busy / per_second, own, monotonic())


def foreign_load(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share (0..1) of all CPUs that others took between two moments."""
    if before is None or after is None or after.wall <= before.wall:
        return None
    others = (after.machine - before.machine) - (after.own - before.own)
    cpus = os.cpu_count() or 1
    return min(max(others / ((after.wall - before.wall) * cpus), 0.0), 1.0)
