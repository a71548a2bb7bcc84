"""`--baseline`: every benchmark row beside the same row of an earlier run.

Verdicts are those of `topokv compare` and need the samples of both runs; between machines or
builds there is a change to look at and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from topokv.core import shown
from topokv.report.entries import Entry
from topokv.results import Compared, Run, compare, read

# What was compared, by the new row's file and by what it asked.
Found: TypeAlias = dict[tuple[str, tuple[Any, ...]], Compared]


def judged(
    entries: Sequence[Entry], files: Iterable[Path], baseline: Path
) -> tuple[list[Entry], list[str]]:
    """The entries with their comparison, and a line for each file that gets no verdicts.

    Raises ResultFileError for a baseline that cannot be read, ValueError for one that no file of
    the report can be compared with.
    """
    base = read(baseline)
    sources = {entry.source for entry in entries if entry.run.kind == "bench"}
    found: Found = {}
    lines = []
    for path in files:
        source = shown(path)
        if source in sources:
            lines += _compare_into(found, base, shown(baseline), read(path), source)
    if not found:
        why = f": {lines[0]}" if lines else ""
        raise ValueError(f"no row can be compared with {shown(baseline)}{why}")
    return [
        replace(entry, compared=found.get((entry.source, entry.row.key))) for entry in entries
    ], lines


def _compare_into(found: Found, base: Run, baseline: str, new: Run, source: str) -> list[str]:
    """Add the comparison of one file; a line where it has no verdicts."""
    same = _fingerprint(new) is not None and _fingerprint(new) == _fingerprint(base)
    try:
        comparison = compare(base, new, across_machines=not same)
    except ValueError as error:
        return [f"{source}: not compared with {baseline}: {error}"]
    found |= {(source, compared.row.key): compared for compared in comparison.compared}
    if same:
        return []
    prints = f"fingerprints {_fingerprint(base)} and {_fingerprint(new)}"
    return [f"{source}: no verdicts, {baseline} is of another machine or build ({prints})"]


def _fingerprint(run: Run) -> Any:
    return run.environment.get("fingerprint")
