"""One run judged against another of the same machine: FAST, SLOW, SAME or ????; no torch.

What is judged is the speedup, dense over sparse inside one round: both arms met the same noise, so
it moves far less between runs than a time does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from topokv.results.record import Row, Run
from topokv.stats import Verdict, VerdictName, median, process_ratios, verdict

NUMERATOR, DENOMINATOR = "dense_sdpa_ms", "sparse_selected_ms"


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of both runs. `verdict` is None across machines, or where `why_not` says why."""

    row: Row
    base: float | None
    new: float | None
    verdict: Verdict | None = None
    why_not: str | None = None

    @property
    def name(self) -> VerdictName | None:
        return None if self.verdict is None else self.verdict.name

    def fails(self, above: float) -> bool:
        """Whether all of the interval is a loss of more than `above` (a share, 0..1)."""
        high = None if self.verdict is None else self.verdict.high
        return high is not None and high < 1 - above


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every row that either run asked for, and the ones that only one of them did."""

    compared: tuple[Compared, ...]
    only_base: tuple[Row, ...]
    only_new: tuple[Row, ...]


def compare(base: Run, new: Run, *, across_machines: bool = False) -> Comparison:
    """How `new` stands to `base`, row by row; with `across_machines` ratios and no verdict.

    Raises ValueError for runs that are no benchmarks, that share no row, or whose fingerprints
    differ (or are missing) and `across_machines` is not asked for.
    """
    for name, run in (("base", base), ("new", new)):
        if run.kind != "bench":
            raise ValueError(f"{name} must be a run of `topokv bench`, got kind {run.kind!r}")
    if not across_machines:
        _check_fingerprints(base, new)
    old, fresh = ({row.key: row for row in run.rows} for run in (base, new))
    shared = [key for key in old if key in fresh]
    if not shared:
        raise ValueError("base and new have no row in common; were they asked the same?")
    pairs = [(old[key], fresh[key]) for key in shared]
    return Comparison(
        tuple(_compared(*pair, len(pairs), judge=not across_machines) for pair in pairs),
        tuple(row for key, row in old.items() if key not in fresh),
        tuple(row for key, row in fresh.items() if key not in old),
    )


def _check_fingerprints(base: Run, new: Run) -> None:
    prints = [run.environment.get("fingerprint") for run in (base, new)]
    if None in prints or prints[0] != prints[1]:
        raise ValueError(
            f"base and new come from different machines or builds (fingerprints {prints[0]} and "
            f"{prints[1]}), so no verdict is given; --across-machines shows ratios"
        )


def _compared(base: Row, new: Row, num_rows: int, *, judge: bool) -> Compared:
    before, after = speedups_of(base), speedups_of(new)
    shown = Compared(new, _speedup(base, before), _speedup(new, after))
    for name, row in (("base", base), ("new", new)):
        if row.status != "ok":
            reason = f"{name} is {row.status}" + (f": {row.reason}" if row.reason else "")
            return replace(shown, why_not=reason)
    if not judge:
        return shown
    if not before or not after:
        return replace(shown, why_not="no samples to judge by")
    return replace(shown, verdict=verdict(before, after, num_rows=num_rows))


def _speedup(row: Row, values: Sequence[float]) -> float | None:
    return median(values) if values else row.metrics.get("speedup")


def speedups_of(row: Row) -> list[float]:
    """The row's speedup in each process, the median of its paired ratios."""
    return process_ratios(row.samples.get(NUMERATOR, ()), row.samples.get(DENOMINATOR, ()))
