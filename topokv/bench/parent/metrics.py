"""From the samples of several processes to a row: medians, intervals and flags; no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from topokv.bench import Part
from topokv.results import Row
from topokv.stats import (
    AA_BAND,
    median,
    over_processes,
    paired_ratios,
    process_ratios,
    quantile,
    ratio,
    relative_iqr,
    relative_spread,
)

# Limits beyond which a row is unstable; docs/measuring.md says why these.
SPREAD_LIMIT = 0.10
IQR_LIMIT = 0.25
FAULTS_LIMIT = 1.0
LOAD_LIMIT = 0.10
CLOCK_LIMIT = 0.75
LAUNCH_LIMIT = 0.25

DENSE, AGAIN, SPARSE = "dense_sdpa_ms", "dense_again_ms", "sparse_selected_ms"
# Facts that are the same whoever measures them: a row shows the last process's.
_FIXED_FACTS = (
    "density",
    "summary_bytes",
    "recall",
    "recall_worst",
    "output_error",
    "output_error_worst",
    "gap_closed",
    "gap_closed_low",
    "gap_closed_high",
)

Metrics = dict[str, float | None]


def summarise(row: Row, parts: Sequence[Part], processes: int) -> Row:
    """`row` with what `parts`, one for each process so far, say of it.

    The first part that is not ok decides the row. With fewer parts than `processes` the row is
    interrupted: it holds the values so far and says how many there are.
    """
    broken = next((part for part in parts if part.status != "ok"), None)
    if broken is not None:
        return replace(row, status=broken.status, step=broken.step, reason=broken.reason)
    if not parts:
        return row
    metrics = _metrics(row, parts)
    done = len(parts) >= processes
    return replace(
        row,
        status="ok" if done else "interrupted",
        step=None if done else "benchmark",
        reason=_unusable(metrics) if done else f"{len(parts)} of {processes} processes",
        dense_backend=parts[-1].dense_backend,
        sparse_backend=parts[-1].sparse_backend,
        flags=_flags(parts, metrics),
        metrics=metrics,
        samples=_samples(parts),
    )


def _unusable(metrics: Metrics) -> str | None:
    return None if metrics["speedup"] is not None else "no usable pair of times: a clock read 0"


def _samples(parts: Sequence[Part]) -> dict[str, tuple[tuple[float, ...], ...]]:
    names = dict.fromkeys(name for part in parts for name in part.samples)
    return {n: tuple(tuple(part.samples.get(n, ())) for part in parts) for n in names}


def _metrics(row: Row, parts: Sequence[Part]) -> Metrics:
    times = _times(parts)
    metrics: Metrics = {
        **times,
        **_speedups(parts),
        **_step(times),
        **_bandwidth(parts, times),
        **_tails(parts),
        **_facts(parts),
        "num_processes": len(parts),
        "ceiling": ratio(row.seq_len, row.selected_tokens),
    }
    return metrics


def _times(parts: Sequence[Part]) -> Metrics:
    """The median over processes of each arm's median time."""
    names = dict.fromkeys(name for part in parts for name in part.samples)
    return {name: _median_of_medians(parts, name) for name in names if name != AGAIN}


def _median_of_medians(parts: Sequence[Part], name: str) -> float | None:
    medians = [median(part.samples[name]) for part in parts if part.samples.get(name)]
    return median(medians) if medians else None


def _process_ratios(parts: Sequence[Part], top: str, bottom: str) -> list[float]:
    return process_ratios(_of_parts(parts, top), _of_parts(parts, bottom))


def _of_parts(parts: Sequence[Part], name: str) -> list[Sequence[float]]:
    return [part.samples.get(name, ()) for part in parts]


def _speedups(parts: Sequence[Part]) -> Metrics:
    found: Metrics = dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    cold = _process_ratios(parts, DENSE, SPARSE)
    if cold:
        interval = over_processes(cold)
        found["speedup"] = interval.center
        found["speedup_low"], found["speedup_high"] = interval.low, interval.high
    for name, top, bottom in (
        ("warm_speedup", "dense_warm_ms", "sparse_warm_ms"),
        ("wall_speedup", "dense_wall_ms", "sparse_wall_ms"),
        ("graph_speedup", "dense_graph_ms", "sparse_graph_ms"),
        ("aa_ratio", DENSE, AGAIN),
    ):
        values = _process_ratios(parts, top, bottom)
        found[name] = over_processes(values).center if values else None
    return found


def _step(times: Metrics) -> Metrics:
    """What a decode step costs with its selection, and when building the summary has paid."""
    dense, sparse, score = (times.get(name) for name in (DENSE, SPARSE, "score_ms"))
    step = None
    if sparse is not None and score is not None:
        step = sparse + score + (times.get("update_ms") or 0.0)
    summary = times.get("summary_ms") or 0.0
    gain = dense - step if dense is not None and step is not None else None
    return {
        "step_ms": step,
        "step_speedup": ratio(dense, step),
        "break_even_steps": math.ceil(summary / gain) if gain is not None and gain > 0 else None,
    }


def _bandwidth(parts: Sequence[Part], times: Metrics) -> Metrics:
    """GB/s of what dense reads, and its share of a plain copy's and a plain read's."""
    facts = parts[-1].facts
    effective = _gbps(facts.get("cache_bytes"), times.get(DENSE))
    # A copy moves each byte twice over the memory bus, in and out.
    copied = facts.get("copy_bytes")
    copy = _gbps(None if copied is None else 2 * copied, times.get("copy_ms"))
    read = _gbps(facts.get("cache_bytes"), times.get("read_ms"))
    return {
        "effective_gbps": effective,
        "sparse_gbps": _gbps(facts.get("selected_bytes"), times.get(SPARSE)),
        "copy_gbps": copy,
        "read_gbps": read,
        "copy_share": ratio(effective, copy),
        "read_share": ratio(effective, read),
    }


def _gbps(num_bytes: float | None, milliseconds: float | None) -> float | None:
    rate = ratio(num_bytes, milliseconds)
    return None if rate is None else rate / 1e6


def _tails(parts: Sequence[Part]) -> Metrics:
    times = [time for part in parts for time in part.samples.get(SPARSE, ())]
    shares = {"sparse_p50_ms": 0.5, "sparse_p90_ms": 0.9, "sparse_p99_ms": 0.99}
    return {name: quantile(times, share) if times else None for name, share in shares.items()}


def _facts(parts: Sequence[Part]) -> Metrics:
    found: Metrics = {}
    for name in _FIXED_FACTS:
        known = [part.facts[name] for part in parts if part.facts.get(name) is not None]
        found[name] = known[-1] if known else None
    # The columns are medians over processes, which one disturbed process can't move.
    for name in ("minor_faults", "foreign_load", "clock_share"):
        found[name] = _over(parts, name, median)
    found["peak_memory_bytes"] = _over(parts, "peak_memory_bytes", max)
    return found


def _over(parts: Sequence[Part], name: str, pick: Callable[[list[float]], float]) -> float | None:
    known = [value for part in parts if (value := part.facts.get(name)) is not None]
    return pick(known) if known else None


def _flags(parts: Sequence[Part], metrics: Metrics) -> tuple[str, ...]:
    flags = list(dict.fromkeys(flag for part in parts for flag in part.flags))
    share = launch_share(metrics.get("sparse_wall_ms"), metrics.get("sparse_graph_ms"))
    if share is not None and share > LAUNCH_LIMIT:
        flags.append("launch-bound")
    if metrics["step_ms"] is not None and metrics["break_even_steps"] is None:
        flags.append("no-break-even")
    reasons = instabilities(parts, metrics)
    if reasons:
        flags.append("unstable: " + "; ".join(reasons))
    return tuple(flags)


def _pairs(part: Part) -> list[float]:
    return paired_ratios(part.samples.get(DENSE, ()), part.samples.get(SPARSE, ()))


def instabilities(parts: Sequence[Part], metrics: Mapping[str, float | None]) -> list[str]:
    """Why a row's numbers may not hold, each in a few words; nothing where they may."""
    reasons = []
    aa = metrics.get("aa_ratio")
    if aa is not None and abs(aa - 1) > AA_BAND:
        reasons.append(f"A/A {aa:.3f}")
    speedups = _process_ratios(parts, DENSE, SPARSE)
    if len(speedups) > 1 and relative_spread(speedups) > SPREAD_LIMIT:
        reasons.append(f"processes spread by {relative_spread(speedups):.0%}")
    rounds = [relative_iqr(ratios) for part in parts if (ratios := _pairs(part))]
    if rounds and median(rounds) > IQR_LIMIT:
        reasons.append(f"ratio IQR {median(rounds):.0%}")
    reasons += _limits(metrics)
    backends = {(p.dense_backend, p.sparse_backend) for p in parts if p.sparse_backend}
    for dense, sparse in sorted(pair for pair in backends if pair[0] and pair[0] != pair[1]):
        reasons.append(f"dense ran {dense}, sparse {sparse}")
    return reasons


def _limits(metrics: Mapping[str, float | None]) -> list[str]:
    faults, load, clock = (
        metrics.get(name) for name in ("minor_faults", "foreign_load", "clock_share")
    )
    reasons = []
    if faults is not None and faults > FAULTS_LIMIT:
        reasons.append(f"{faults:.0f} minor faults a call")
    if load is not None and load > LOAD_LIMIT:
        reasons.append(f"foreign load {load:.0%}")
    if clock is not None and clock < CLOCK_LIMIT:
        reasons.append(f"clock at {clock:.0%}")
    return reasons


def launch_share(eager_ms: float | None, graph_ms: float | None) -> float | None:
    """1 - graph / eager: the share of a call that is spent launching it; None if unknown."""
    if not eager_ms or graph_ms is None or eager_ms <= 0:
        return None
    return max(0.0, 1 - graph_ms / eager_ms)
