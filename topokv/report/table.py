"""Entries arranged for a person: sections, column groups side by side, and notes below.

A section holds one workload. What is the same in all its rows goes into its caption; what tells
rows apart becomes columns; each machine's numbers form a group of columns. No text layout here:
the formats decide how a section is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from topokv.report.columns import COLUMNS, FIRST_FIVE, Column, columns_for
from topokv.report.entries import Entry, MachineKey
from topokv.report.groups import GroupKey, group_names
from topokv.report.notes import Notes, dense_against_dense, random_keys
from topokv.results import KEY_FIELDS

# A line of a section: the entry of each group, where that machine measured it.
Line: TypeAlias = dict[GroupKey, Entry]

_ASKED = tuple(column for column in COLUMNS if column.role == "asked")
# Rows of machines that ran in different types still stand side by side; the group names the type.
# A seed makes other numbers of the same kind: it is no reason for a line of its own.
_NOT_IN_LINE = ("dtype", "seed")
# Said in words elsewhere, or of no use to a reader of a table.
_NOT_IN_CAPTION = ("workload", "seed", "seq_len", "selected_tokens")
_ALWAYS = ("seq_len", "selected_tokens")


@dataclass(frozen=True, slots=True)
class Heading:
    """One column of a section; `group` is None where the column belongs to all groups."""

    column: Column
    group: GroupKey | None = None

    def cell(self, line: Line) -> str:
        if self.group is None:
            return next(filter(None, map(self.column.show, line.values())), "")
        entry = line.get(self.group)
        if entry is None:
            return ""
        if self.column.name == "speedup" and entry.row.status != "ok":
            return self.column.show(entry) or entry.row.status
        return self.column.show(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How tables are arranged: `columns` chosen by name, all of them, or one group a row."""

    columns: tuple[Column, ...] | None = None
    wide: bool = False
    long: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One table: its title, what all rows share, its columns, lines and notes."""

    title: str
    caption: str
    groups: dict[GroupKey, str]
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    notes: Notes
    remark: str
    layout: Layout

    def apart(self) -> list[Section]:
        """The same rows with each machine in a section of its own."""
        return [
            _section(
                [line[group] for line in self.lines if group in line], {group: name}, self.layout
            )
            for group, name in self.groups.items()
        ]


def sections(
    entries: Sequence[Entry], names: dict[MachineKey, str], layout: Layout
) -> list[Section]:
    """One section for each kind of run and workload; with `long`, for each machine too."""
    parts: dict[Any, list[Entry]] = defaultdict(list)
    for entry in entries:
        machine = (entry.machine, entry.row.dtype) if layout.long else None
        parts[entry.run.kind, entry.row.workload, machine].append(entry)
    return [_section(part, group_names(part, names), layout) for part in parts.values()]


def _section(entries: Sequence[Entry], groups: dict[GroupKey, str], layout: Layout) -> Section:
    """The section of `entries`, which share kind and workload."""
    lines = tuple(_lines(entries))
    if layout.columns is not None:
        headings = _chosen_headings(layout.columns, list(groups))
    else:
        headings = _headings(
            distinguishing(entries), _results(entries, layout.wide), lines, list(groups)
        )
    return Section(
        title=_title(entries[0], groups),
        caption=_caption(entries),
        groups=groups,
        headings=tuple(headings),
        lines=lines,
        notes=Notes.of(entries),
        remark="; ".join(filter(None, [random_keys(entries), dense_against_dense(entries)])),
        layout=layout,
    )


def distinguishing(entries: Sequence[Entry]) -> list[Column]:
    """The fewest asked columns, in order, that tell the lines of `entries` apart.

    The length of the context and the budget are always among them.
    """
    chosen = [column for column in _ASKED if column.name in _ALWAYS]
    tuples: list[tuple[Any, ...]] = [tuple(c.value(e) for c in chosen) for e in entries]
    spared = _spared(entries)
    for column in _ASKED:
        if column in chosen or column.name in spared:
            continue
        longer = [(*key, column.value(e)) for key, e in zip(tuples, entries, strict=True)]
        if len(set(longer)) > len(set(tuples)):
            chosen.append(column)
            tuples = longer
    return [column for column in _ASKED if column in chosen]


def _results(entries: Sequence[Entry], wide: bool) -> list[Column]:
    """The columns of results that some row fills; a benchmark has the first five in any case."""
    # A run of kind quality times nothing.
    always = FIRST_FIVE if any(entry.run.kind == "bench" for entry in entries) else ()
    return [
        column
        for column in columns_for(entries)
        if column.role in ("number", "outcome")
        and (column.name in FIRST_FIVE or column.narrow or wide)
        and (column.name in always or any(column.value(e) not in (None, "") for e in entries))
    ]


def _lines(entries: Sequence[Entry]) -> Iterable[Line]:
    """Entries that asked the same on different machines, side by side, in order of first sight."""
    spared = _spared(entries)
    lines: dict[tuple[Any, ...], Line] = {}
    for entry in entries:
        lines.setdefault(_asked(entry, spared), {})[entry.machine, entry.row.dtype] = entry
    return lines.values()


def _spared(entries: Sequence[Entry]) -> Sequence[str]:
    """What may differ within a line: not the seed, where one machine measured several."""
    places = {(entry.machine, entry.row.dtype, _asked(entry, _NOT_IN_LINE)) for entry in entries}
    return _NOT_IN_LINE if len(places) == len(entries) else ("dtype",)


def _asked(entry: Entry, spared: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(entry.row, name) for name in KEY_FIELDS if name not in spared)


def _measured(group: GroupKey, lines: Iterable[Line]) -> list[Entry]:
    return [line[group] for line in lines if group in line]


def _headings(
    shared: list[Column], own: list[Column], lines: Sequence[Line], groups: Sequence[GroupKey]
) -> list[Heading]:
    """The first five of the first group, what all groups share, then each group's own."""
    alike = [column for column in own if len(groups) > 1 and _is_alike(column, lines)]
    apart = [column for column in own if column not in alike]
    first = [Heading(column, groups[0]) for column in apart]
    together = [Heading(column) for column in (*shared, *alike)]
    together = sorted([*together, *first], key=lambda heading: _order(heading.column))
    return together + [Heading(column, group) for group in groups[1:] for column in apart]


def _order(column: Column) -> int:
    """Its place in COLUMNS; a metric that is not described there comes last."""
    return COLUMNS.index(column) if column in COLUMNS else len(COLUMNS)


def _is_alike(column: Column, lines: Iterable[Line]) -> bool:
    """Whether every line reads the same on all machines, as kept attention should."""
    return column.of_selection and all(
        len({column.show(e) for e in line.values()} - {""}) <= 1 for line in lines
    )


def _chosen_headings(columns: Iterable[Column], groups: Sequence[GroupKey]) -> list[Heading]:
    """The columns that a person named, in that order; results once for each group."""
    return [
        Heading(column, group)
        for column in columns
        for group in ([None] if column.role == "asked" else groups)
    ]


def _title(entry: Entry, groups: dict[GroupKey, str]) -> str:
    what = {"bench": "Benchmark", "quality": "Quality"}.get(entry.run.kind, entry.run.kind)
    return f"{what}: {entry.row.workload or 'workload not recorded'} ({', '.join(groups.values())})"


def _caption(entries: Sequence[Entry]) -> str:
    """What was asked of every row alike."""
    parts = []
    for column in _ASKED:
        cells = {column.value(entry) for entry in entries}
        if len(cells) == 1 and cells != {None} and column.name not in _NOT_IN_CAPTION:
            parts.append(f"{column.name} {column.show(entries[0])}")
    return ", ".join(parts)
