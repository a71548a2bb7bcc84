"""A section as lines of text: columns set under their names, with tabulate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tabulate import DataRow, TableFormat, tabulate

from topokv.report.table import Heading, Line, Section

_NOTE = "note"


@dataclass(frozen=True, slots=True)
class Grid:
    """Which columns of a section are set, and how far apart.

    `between` are columns that become lines above the rows that share them. `limit` is the width
    that the text around the table keeps to; None for no limit.
    """

    part: Section
    headings: tuple[Heading, ...]
    between: tuple[Heading, ...]
    gap: str
    limit: int | None

    @classmethod
    def full(cls, part: Section) -> Grid:
        """Every column of the section, however wide."""
        return cls(part, part.headings, (), "  ", None)

    def with_heading(self, heading: Heading) -> Grid:
        """The grid with one more column, at its place among the section's."""
        wanted = {*self.headings, heading}
        return replace(self, headings=tuple(h for h in self.part.headings if h in wanted))

    def width(self) -> int:
        """The width of the table in characters."""
        widths = [
            max(map(len, (*label(heading, self.part), *map(heading.cell, self.part.lines))))
            for heading in self.headings
        ]
        if self.part.notes.texts:
            widths.append(max(map(len, (_NOTE, *map(self._marks, self.part.lines)))))
        return sum(widths) + len(self.gap) * (len(widths) - 1)

    def drawn(self) -> list[str]:
        """The table, line by line."""
        lines = self._lines_in_order()
        labels = [label(heading, self.part) for heading in self.headings]
        cells = [list(map(heading.cell, lines)) for heading in self.headings]
        align = ["left" if h.column.is_text else "right" for h in self.headings]
        if self.part.notes.texts:
            labels.append(("", _NOTE))
            cells.append(list(map(self._marks, lines)))
            align.append("left")
        levels = list(zip(*labels, strict=True))
        table = drawn(levels if any(levels[0]) else levels[1:], _transposed(cells), align, self.gap)
        above = len(table) - len(lines)
        return [*table[:above], *self._with_lines_between(table[above:], lines)]

    def _marks(self, line: Line) -> str:
        return self.part.notes.marks(line.values())

    def _shared(self, line: Line) -> str:
        said = [(h.column.name, h.cell(line)) for h in self.between]
        return ", ".join(f"{name} {cell}" for name, cell in said if cell)

    def _lines_in_order(self) -> list[Line]:
        """The section's lines; those that share a line above them come together."""
        lines = list(self.part.lines)
        order = list(dict.fromkeys(map(self._shared, lines)))
        return sorted(lines, key=lambda line: order.index(self._shared(line)))

    def _with_lines_between(self, rows: list[str], lines: list[Line]) -> Iterator[str]:
        pairs = zip(rows, lines, strict=True)
        for said, group in groupby(pairs, key=lambda pair: self._shared(pair[1])):
            if said:
                yield f"{said}:"
            yield from (row for row, _ in group)


def label(heading: Heading, part: Section) -> tuple[str, str]:
    """The two levels of a column's head: its group, where there are several, and its name."""
    if heading.group is None or len(part.groups) == 1:
        return "", heading.column.name
    return part.groups[heading.group], heading.column.name


def drawn(
    levels: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    align: Sequence[str],
    gap: str = "  ",
) -> list[str]:
    """Header levels, a rule and rows as lines. tabulate pads headers, so they go in as rows."""
    form = TableFormat(None, None, None, None, None, DataRow("", gap, ""), 0, None)
    widths = [max(map(len, column)) for column in _transposed([*levels, *rows])]
    body = [*levels, ["-" * width for width in widths], *rows]
    text = tabulate(body, tablefmt=form, colalign=align, disable_numparse=True)
    return [line.rstrip() for line in text.splitlines()]


def _transposed(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*cells, strict=True)]
