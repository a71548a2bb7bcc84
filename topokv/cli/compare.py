"""`topokv compare`: one run judged against another of the same machine.

Exit codes: 0 no row is surely slower than asked, 1 one is, 2 bad input.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topokv.results import Compared, Comparison, Row

_HEADERS = ("workload", "tokens", "selector", "attention", "base", "new", "change", "interval", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", type=Path, metavar="BASE", help="results of the earlier run")
    parser.add_argument("new", type=Path, metavar="NEW", help="results of the later run")
    parser.add_argument(
        "--fail-above",
        type=float,
        default=5.0,
        metavar="PCT",
        help="exit 1 where a speedup is lower by more than this, all of its interval; default: 5",
    )
    parser.add_argument(
        "--across-machines",
        action="store_true",
        help="show ratios of runs of different machines or builds; no verdict is given",
    )


def run(args: argparse.Namespace) -> int:
    from tabulate import tabulate

    from topokv.results import compare, read

    if not 0 <= args.fail_above < 100:
        raise ValueError(f"fail_above must be 0 or more and below 100, got {args.fail_above:g}")
    comparison = compare(read(args.base), read(args.new), across_machines=args.across_machines)
    lines = [_line(compared) for compared in comparison.compared]
    print(tabulate(lines, headers=_HEADERS, disable_numparse=True))
    for note in _notes(comparison):
        print(note)
    failing = [c for c in comparison.compared if c.fails(args.fail_above / 100)]
    if failing:
        print(f"{len(failing)} of {len(lines)} rows are slower by more than {args.fail_above:g} %")
    return int(bool(failing))


def _line(compared: Compared) -> tuple[str, ...]:
    row, judged = compared.row, compared.verdict
    layer = "" if row.layer is None else f" layer {row.layer}"
    change = compared.new / compared.base if compared.new and compared.base else None
    bounds = ""
    if judged is not None and judged.low is not None and judged.high is not None:
        bounds = f"{_percent(judged.low)} … {_percent(judged.high)}"
    return (
        f"{row.workload}{layer}",
        f"{row.selected_tokens} of {row.seq_len}",
        str(row.selector),
        str(row.attention),
        _times(compared.base),
        _times(compared.new),
        "" if change is None else _percent(change),
        bounds,
        compared.name or compared.why_not or "",
    )


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.3g}x"


def _percent(change: float) -> str:
    return f"{change - 1:+.1%}"


def _notes(comparison: Comparison) -> list[str]:
    counts = Counter(compared.name for compared in comparison.compared if compared.name)
    notes = [", ".join(f"{count} {name}" for name, count in sorted(counts.items()))]
    for name, rows in (("BASE", comparison.only_base), ("NEW", comparison.only_new)):
        notes += [f"only in {name}: {_words(row)}" for row in rows]
    return [note for note in notes if note]


def _words(row: Row) -> str:
    return f"{row.workload}, {row.selected_tokens} of {row.seq_len} tokens, {row.selector}"
