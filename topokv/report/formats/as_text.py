"""Tables for a terminal: as many columns as its width takes, the rest named below."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from textwrap import wrap

from topokv.report import suites
from topokv.report.columns import FIRST_FIVE, Column
from topokv.report.formats.grid import Grid, drawn, label
from topokv.report.report import Report
from topokv.report.table import Heading, Section

# Which columns to give up last when a terminal is too narrow for all.
_WORTH = (
    "recall",
    "speedup",
    "verdict",
    "change",
    "step_speedup",
    "interval",
    "gap_closed",
    "judged",
)


def render(report: Report, width: int | None = None) -> str:
    """The report as text, at most `width` columns wide (the terminal's, 120 where there is none).

    `--wide` and `--columns` are written in full, whatever the width.
    """
    limit = width or shutil.get_terminal_size((120, 24)).columns
    fixed = report.layout.wide or report.layout.columns is not None
    parts = ["\n".join(_wrapped(report.answer(), limit))]
    parts += [_suites(report, limit)] if report.suites else []
    for part in report.sections():
        if fixed:
            parts.append(_written(part, Grid.full(part)))
        else:
            parts += [_written(piece, _fitted(piece, limit)) for piece in _pieces(part, limit)]
    parts.append("\n".join(_wrapped([*report.legend.lines(), *report.lines], limit)))
    return "\n\n".join(filter(None, parts)) + "\n"


def _suites(report: Report, width: int) -> str:
    names = report.legend.names
    rows = [suites.cells(suite, names) for suite in report.suites]
    tables = (_suite_table(rows, suites.SPARED[:spared]) for spared in range(len(suites.SPARED)))
    fitting = (table for table in tables if max(map(len, table)) <= width)
    table = next(fitting, _suite_table(rows, suites.SPARED))
    return "\n".join([*table, *_wrapped(suites.all_remarks(report.suites, names), width)])


def _suite_table(rows: Sequence[Sequence[str]], spared: Sequence[int]) -> list[str]:
    kept = [i for i in range(len(suites.HEADERS)) if i not in spared]
    align = ["right" if i in suites.COUNTED else "left" for i in kept]
    headers, *cells = ([line[i] for i in kept] for line in (suites.HEADERS, *rows))
    return drawn([headers], cells, align)


def _pieces(whole: Section, width: int) -> list[Section]:
    """The section, or one for each machine where side by side they cannot fit."""
    if len(whole.groups) == 1 or _fits(whole, width):
        return [whole]
    return whole.apart()


def _fits(part: Section, width: int) -> bool:
    return any(grid.width() <= width for grid in _attempts(part, width))


def _attempts(part: Section, width: int) -> Iterable[Grid]:
    """Ways to set the least that is needed, the most comfortable first.

    What was asked, other than context and budget, moves from columns to lines between the rows.
    """
    needed = [heading for heading in part.headings if _is_needed(heading, part)]
    asked = [h for h in needed if h.column.role == "asked" and h.column.name not in FIRST_FIVE]
    rest = [heading for heading in needed if heading not in asked]
    for gap in ("  ", " "):
        yield Grid(part, tuple(needed), (), gap, width)
    for gap in ("  ", " "):
        yield Grid(part, tuple(rest), tuple(asked), gap, width)


def _is_needed(heading: Heading, part: Section) -> bool:
    """What tells rows apart, the first five, and every machine's speedup and recall."""
    first = heading.group == next(iter(part.groups))
    name = heading.column.name
    return (
        heading.column.role == "asked"
        or name in ("speedup", "recall")
        or (name in FIRST_FIVE and first)
    )


def _fitted(part: Section, width: int) -> Grid:
    """The first attempt that fits, and as many more columns as there is room for, by worth."""
    attempts = list(_attempts(part, width))
    grid = next((attempt for attempt in attempts if attempt.width() <= width), attempts[-1])
    for heading in sorted(part.headings, key=lambda h: _worth(h.column)):
        if heading not in (*grid.headings, *grid.between):
            wider = grid.with_heading(heading)
            grid = wider if wider.width() <= width else grid
    return grid


def _worth(column: Column) -> int:
    return _WORTH.index(column.name) if column.name in _WORTH else len(_WORTH)


def _written(part: Section, grid: Grid) -> str:
    shown = (*grid.headings, *grid.between)
    left_out = [" ".join(label(h, part)).strip() for h in part.headings if h not in shown]
    hint = [f"not in this width, see --wide: {', '.join(left_out)}"] if left_out else []
    above = _wrapped([part.title, part.caption], grid.limit)
    below = _wrapped([part.remark, *part.notes.numbered(), *hint], grid.limit)
    return "\n".join([*above, "", *grid.drawn(), *below])


def _wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """The lines that are not empty, cut at words to `width`; a continuation is set in."""
    full = [line for line in lines if line]
    if width is None:
        return full
    return [part for line in full for part in _cut(line, width)]


def _cut(line: str, width: int) -> list[str]:
    # A hyphen is part of a file's name or of an option.
    return wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
