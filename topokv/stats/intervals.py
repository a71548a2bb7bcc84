"""Medians of paired ratios, intervals over processes, and verdicts; pure Python, no siblings.

A speedup is the median of paired ratios inside one process. Processes differ by more than the
rounds inside them do (memory layout, page colours), so an interval takes one value from each
process and works on logarithms, where a ratio and its inverse are equally far from 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
# Dense against dense on one cache stays within this of 1, so a smaller effect is no effect.
AA_BAND = 0.02
# Two runs are the same when the whole interval of their ratio lies within this of 1.
SAME_BAND = 0.05
# How often a whole comparison, all of its rows together, may call a change that isn't one.
FAMILY_ERROR = 0.01

VerdictName = Literal["FAST", "SLOW", "SAME", "????"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A centre and its bounds; no bounds where there are too few processes to have them."""

    center: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a new speedup stands to a base: `ratio` is new / base, above 1 is faster."""

    name: VerdictName
    ratio: float
    low: float | None
    high: float | None


def median(values: Sequence[float]) -> float:
    """The middle of `values`; ValueError where there are none."""
    if not values:
        raise ValueError("values must hold at least one number, got none")
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of `values` lie, interpolated linearly."""
    if not values:
        raise ValueError("values must hold at least one number, got none")
    if not 0 <= share <= 1:
        raise ValueError(f"share ({share}) must lie in 0..1")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient of two times; None where either is missing or not a usable time."""
    if numerator is None or denominator is None:
        return None
    usable = _usable(numerator) and _usable(denominator)
    return numerator / denominator if usable else None


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of each pair of one round, leaving out rounds where either time is unusable."""
    pairs = zip(numerators, denominators, strict=True)
    return [top / bottom for top, bottom in pairs if _usable(top) and _usable(bottom)]


def process_ratios(
    numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]]
) -> list[float]:
    """Each process's median paired ratio; a process without a usable pair is left out.

    Both hold one sequence of rounds for each process.
    """
    processes = zip(numerators, denominators, strict=True)
    paired = [paired_ratios(top, bottom) for top, bottom in processes]
    return [median(ratios) for ratios in paired if ratios]


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def relative_iqr(values: Sequence[float]) -> float:
    """The distance between the quartiles as a share of the median."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / median(values)


def relative_spread(values: Sequence[float]) -> float:
    """Max / min - 1: by how much of the least the values differ."""
    return max(values) / min(values) - 1


def median_interval(values: Sequence[float]) -> Interval:
    """The median with a 95 % interval from order statistics: no shape of the noise is assumed.

    Bounds are None below six values, where no two of them enclose the median that surely.
    """
    ordered, count = sorted(values), len(values)
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    rank = math.floor((count - z * math.sqrt(count)) / 2)
    if count < 6 or rank < 0:
        return Interval(median(values), None, None)
    return Interval(median(values), ordered[rank], ordered[count - 1 - rank])


def half_width(interval: Interval) -> float:
    """Half of the interval's width as a share of its centre; infinite without bounds."""
    if interval.low is None or interval.high is None:
        return math.inf
    return (interval.high - interval.low) / 2 / interval.center


def over_processes(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of one value per process, with a t-interval of their mean logarithm.

    One process shows nothing about how processes differ: then there are no bounds.
    """
    center = median(values)
    if len(values) < 2:
        return Interval(center, None, None)
    logs = [math.log(value) for value in values]
    reach = t_quantile(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    # Of a lopsided handful the median can lie outside the interval of the mean: reach out to it.
    return Interval(
        center, min(center, math.exp(mean - reach)), max(center, math.exp(mean + reach))
    )


def verdict(base: Sequence[float], new: Sequence[float], *, num_rows: int = 1) -> Verdict:
    """FAST, SLOW, SAME or ???? for two runs' speedups, one value per process each.

    Welch's interval of the difference of mean logarithms. FAST and SLOW need all of it outside the
    A/A band, SAME all of it inside the wider `SAME_BAND`; `num_rows` comparisons share
    `FAMILY_ERROR`, because of sixty rows one would differ by chance.
    """
    change = math.log(median(new) / median(base))
    if len(base) < 2 or len(new) < 2:
        return Verdict("????", math.exp(change), None, None)
    low, high = _welch(base, new, 1 - FAMILY_ERROR / max(num_rows, 1))
    low, high = math.exp(min(low, change)), math.exp(max(high, change))
    return Verdict(_name(low, high), math.exp(change), low, high)


def _name(low: float, high: float) -> VerdictName:
    if low > 1 + AA_BAND:
        return "FAST"
    if high < 1 / (1 + AA_BAND):
        return "SLOW"
    if low >= 1 / (1 + SAME_BAND) and high <= 1 + SAME_BAND:
        return "SAME"
    return "????"


def _welch(base: Sequence[float], new: Sequence[float], confidence: float) -> tuple[float, float]:
    """Bounds of mean(log new) - mean(log base); the two may vary differently (Welch, 1947)."""
    groups = [[math.log(value) for value in values] for values in (base, new)]
    shares = [statistics.variance(logs) / len(logs) for logs in groups]
    change = statistics.fmean(groups[1]) - statistics.fmean(groups[0])
    total = sum(shares)
    if total == 0:
        return change, change
    degrees = total**2 / sum(
        share**2 / (len(logs) - 1) for share, logs in zip(shares, groups, strict=True)
    )
    reach = t_quantile(confidence, degrees) * math.sqrt(total)
    return change - reach, change + reach


def t_quantile(confidence: float, degrees: float) -> float:
    """The t that a Student variable of `degrees` (> 0) stays within, in size, so often."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence ({confidence}) must lie between 0 and 1")
    if not degrees > 0:
        raise ValueError(f"degrees ({degrees}) must be above 0")
    low, high = 0.0, 1.0
    while _inside(high, degrees) < confidence and high < 1e12:
        low, high = high, high * 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def _inside(t: float, degrees: float) -> float:
    """P(|T| <= t) = 1 - I_x(degrees/2, 1/2) with x = degrees / (degrees + t^2)."""
    square = t * t
    x = degrees / (degrees + square)
    return 1 - _incomplete_beta(x, square / (degrees + square), degrees / 2, 0.5)


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """I_x(a, b), regularised; `rest` is 1 - x, given apart because near 1 it would be lost."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(rest, x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log(rest)
    return math.exp(log_front) / a / _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b), from its far end back (Abramowitz & Stegun 26.5.8)."""
    value = 1.0
    for step in range(60, 0, -1):
        half = step // 2
        if step % 2:
            top = -(a + half) * (a + b + half) / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            top = half * (b - half) / ((a + 2 * half - 1) * (a + 2 * half))
        value = 1 + top * x / value
    return value
