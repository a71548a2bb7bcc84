"""Arms timed in interleaved, shuffled rounds, cold and warm; one file for each kind of clock."""

from topokv.timing.bandwidth import prepare_copy, prepare_read
from topokv.timing.cpu import CpuClock
from topokv.timing.cuda import EventClock, GraphArm, WallClock
from topokv.timing.faults import CpuTimes, foreign_load, peak_memory_bytes
from topokv.timing.rounds import Arm, Clock, Samples, StopRule, measure, median_faults
from topokv.timing.sdpa_backend import attention_backend
from topokv.timing.sizes import (
    copy_bytes,
    cpu_flush_bytes,
    gpu_flush_bytes,
    rotation_bytes,
    rotation_count,
)

__all__ = [
    "Arm",
    "Clock",
    "CpuClock",
    "CpuTimes",
    "EventClock",
    "GraphArm",
    "Samples",
    "StopRule",
    "WallClock",
    "attention_backend",
    "copy_bytes",
    "cpu_flush_bytes",
    "foreign_load",
    "gpu_flush_bytes",
    "measure",
    "median_faults",
    "peak_memory_bytes",
    "prepare_copy",
    "prepare_read",
    "rotation_bytes",
    "rotation_count",
]
