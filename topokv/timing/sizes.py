"""How much must be read to make a cache cold: flush sizes and rotation counts; no torch."""

from __future__ import annotations

import math

MIB = 1 << 20

CPU_FLUSH_UNKNOWN = 128 * MIB
# Memory beyond K and V is kept under 600 MB, so a giant cache is flushed as far as this goes.
CPU_FLUSH_LIMIT = 256 * MIB
GPU_FLUSH_LEAST = 512 * MIB
COPY_LIMIT = 128 * MIB


def cpu_flush_bytes(l2_bytes: int | None, l3_bytes: int | None) -> int:
    """Twice the last caches (each of them all together), within 256 MiB; 128 MiB if unknown."""
    if not l3_bytes and not l2_bytes:
        return CPU_FLUSH_UNKNOWN
    return min(2 * ((l2_bytes or 0) + (l3_bytes or 0)), CPU_FLUSH_LIMIT)


def gpu_flush_bytes(l2_bytes: int | None) -> int:
    """max(2 x L2, 512 MiB)."""
    return max(2 * (l2_bytes or 0), GPU_FLUSH_LEAST)


def rotation_bytes(l2_bytes: int | None) -> int:
    """What a graph's rotation touches at least: twice the L2, 256 MiB if that is unknown."""
    return 2 * l2_bytes if l2_bytes else GPU_FLUSH_LEAST // 2


def rotation_count(least_bytes: int, touched_bytes: int) -> int:
    """How many different inputs a replayed graph walks through before one comes again.

    By the bytes that a call touches, not by the size of the cache: a large dense cache passes a
    rule on tensor size while the rows that were gathered from it stay in L2. One more than make
    up `least_bytes`, so that all of it lies between two uses of one input.
    """
    if touched_bytes < 1:
        raise ValueError(f"touched_bytes ({touched_bytes}) must be at least 1")
    if touched_bytes >= least_bytes:
        return 1
    return math.ceil(least_bytes / touched_bytes) + 1


def captured_calls(rotation: int, *, least: int = 20) -> int:
    """Calls in one captured graph: whole rotations, `least` or more, so that none is favoured."""
    return rotation * math.ceil(least / rotation)


def copy_bytes(cache_bytes: int, cache_of_device: int | None) -> int:
    """How much a copy moves to show bandwidth: as much as K, but no more than shows it.

    Four times the last cache is enough to be memory's speed; a buffer beyond that is memory that
    the measurement would take from the user.
    """
    enough = max(4 * (cache_of_device or 0), 32 * MIB)
    return max(1, min(cache_bytes // 2, enough, COPY_LIMIT))
