"""A whole report: what was read, filtered and arranged, ready for any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from topokv.report.baseline import judged
from topokv.report.columns import Column, columns_for, named
from topokv.report.entries import Entry, Suite
from topokv.report.filters import condition, kept, ordered
from topokv.report.findings import sentences
from topokv.report.groups import Legend, legend
from topokv.report.sources import collect
from topokv.report.table import Layout, Section, sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a person asked of a report, in the words of the command line."""

    paths: tuple[Path, ...]
    baseline: Path | None = None
    columns: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    wide: bool = False
    long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a format writes down. `lines` say what was passed over or left out."""

    entries: tuple[Entry, ...]
    suites: tuple[Suite, ...]
    columns: tuple[Column, ...]
    legend: Legend
    layout: Layout
    lines: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        return sections(self.entries, self.legend.names, self.layout)

    def answer(self) -> list[str]:
        """Which selector to use and what it gains, in sentences; nothing without rows."""
        return sentences(self.entries, self.legend.names) if self.entries else []

    @property
    def sources(self) -> set[str]:
        """The files that the report was made from."""
        entries = {entry.source for entry in self.entries}
        return entries | {suite.source for suite in self.suites}

    def lost(self, above: float) -> int:
        """How many rows are surely slower than the baseline by more than that share."""
        return sum(e.compared is not None and e.compared.fails(above) for e in self.entries)

    @property
    def failed(self) -> bool:
        """Whether a test, a backend or a row failed."""
        return any(suite.status == "failed" for suite in self.suites) or any(
            entry.row.status == "failed" for entry in self.entries
        )


def build(request: Request) -> Report:
    """The report of the files that `request` names.

    Raises ValueError for a column or condition that makes no sense, ResultFileError where no file
    could be read.
    """
    collection = collect(request.paths)
    entries: Sequence[Entry] = collection.entries
    lines = list(collection.passed_over)
    if request.baseline is not None:
        entries, without_verdicts = judged(entries, collection.files, request.baseline)
        lines += without_verdicts
    columns = columns_for(entries)
    chosen = named(request.columns, columns) or None
    conditions = [condition(text, columns) for text in request.where]
    rows = ordered(kept(entries, conditions), request.sort, columns)
    if len(rows) < len(entries):
        lines.append(f"{_rows(len(entries) - len(rows))} left out by --where")
    return Report(
        entries=tuple(rows),
        suites=collection.suites,
        columns=columns,
        legend=legend([*rows, *collection.suites]),
        layout=Layout(columns=chosen, wide=request.wide, long=request.long),
        lines=tuple(lines),
        refused=collection.refused,
    )


def flat(report: Report) -> tuple[tuple[Column, ...], Sequence[Entry]]:
    """The columns and entries of the long form: one record for each row of each machine."""
    chosen = report.layout.columns or report.columns
    return tuple(column for column in chosen if not column.for_people), report.entries


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
