"""Medians of paired ratios, intervals over processes, and verdicts; pure Python, no torch."""

from topokv.stats.intervals import (
    AA_BAND,
    Verdict,
    VerdictName,
    half_width,
    median,
    median_interval,
    over_processes,
    paired_ratios,
    process_ratios,
    quantile,
    ratio,
    relative_iqr,
    relative_spread,
    verdict,
)

__all__ = [
    "AA_BAND",
    "Verdict",
    "VerdictName",
    "half_width",
    "median",
    "median_interval",
    "over_processes",
    "paired_ratios",
    "process_ratios",
    "quantile",
    "ratio",
    "relative_iqr",
    "relative_spread",
    "verdict",
]
