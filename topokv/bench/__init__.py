"""The plan of a benchmark, and what travels between its two sides.

The parent plans, aggregates and writes and loads no torch, nor does this; worker processes load it
and measure.
"""

from topokv.bench.channel import Channel
from topokv.bench.parts import Part, failed
from topokv.bench.plan import (
    GAUSSIAN,
    GAUSSIAN_SELECTORS,
    REAL_SELECTORS,
    SAMPLE,
    Cell,
    Plan,
    Settings,
    Source,
    check,
    gaussian_source,
    grid,
    identity,
    planned,
)

__all__ = [
    "GAUSSIAN",
    "GAUSSIAN_SELECTORS",
    "REAL_SELECTORS",
    "SAMPLE",
    "Cell",
    "Channel",
    "Part",
    "Plan",
    "Settings",
    "Source",
    "check",
    "failed",
    "gaussian_source",
    "grid",
    "identity",
    "planned",
]
