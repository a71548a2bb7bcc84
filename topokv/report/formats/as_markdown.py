"""GitHub Markdown: what is pasted into a pull request and shown in a job's summary."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from topokv.report import suites
from topokv.report.report import Report
from topokv.report.table import Heading, Section

# A longer table is folded: the reader opens it, the page stays short.
LONGEST_OPEN = 60
# Signs that Markdown acts on anywhere; an underscore only where it is not inside a word.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
# Signs that begin a heading, a rule or a list at the start of a line.
_AT_START = re.compile(r"^(?=#{1,6}(?:\s|$)|[+-](?:\s|$)|---|==)|(?<=^\d)(?=[.)](?:\s|$))")
# What GitHub turns into a mention, a reference or a link; an empty comment keeps it text.
_LINKED = re.compile(r"@(?=\w)|#(?=\d)|://|\bwww(?=\.)")


def render(report: Report) -> str:
    """The report as Markdown; tables of more than LONGEST_OPEN lines are folded."""
    return "\n\n".join(blocks(report)) + "\n"


def blocks(report: Report) -> Iterator[str]:
    """The report's parts in order, each a whole piece of Markdown."""
    first, *rest = report.answer() or [""]
    if first:
        yield f"**{escaped(first)}**"
        yield from _bullets(rest)
    if report.suites:
        yield "### Tests and sessions"
        yield _suites(report)
        yield from _bullets(suites.all_remarks(report.suites, report.legend.names))
    for part in report.sections():
        yield f"### {escaped(part.title)}"
        if part.caption:
            yield escaped(part.caption)
        yield _section(part)
        if part.remark:
            yield escaped(part.remark)
        yield from _numbered(part.notes.texts)
    yield "### Machines"
    yield from _bullets(report.legend.lines())
    yield from _bullets(report.lines)


def escaped(text: str) -> str:
    """`text` on one line, with nothing in it that Markdown or HTML would act on."""
    plain = html.escape(" ".join(text.split()), quote=False)
    unmarked = _AT_START.sub(r"\\", _SPECIAL.sub(r"\\\g<0>", plain))
    return _LINKED.sub(r"\g<0><!-- -->", unmarked)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A GitHub table; a column is set to the right where `right` says so."""
    rule = ["---:" if to_right else "---" for to_right in right]
    lines = [map(escaped, headers), rule, *(map(escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(summary: str, body: str) -> str:
    """`body` behind a line that opens it."""
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{body}\n\n</details>"


def _suites(report: Report) -> str:
    rows = [suites.cells(suite, report.legend.names) for suite in report.suites]
    right = [i in suites.COUNTED for i in range(len(suites.HEADERS))]
    return table(suites.HEADERS, rows, right)


def _section(part: Section) -> str:
    headers = [_label(heading, part) for heading in part.headings]
    right = [not heading.column.is_text for heading in part.headings]
    rows = [[heading.cell(line) for heading in part.headings] for line in part.lines]
    if part.notes.texts:
        headers, right = [*headers, "note"], [*right, False]
        rows = [
            [*row, part.notes.marks(line.values())]
            for row, line in zip(rows, part.lines, strict=True)
        ]
    text = table(headers, rows, right)
    return text if len(rows) <= LONGEST_OPEN else folded(f"{len(rows)} rows", text)


def _label(heading: Heading, part: Section) -> str:
    if heading.group is None or len(part.groups) == 1:
        return heading.column.name
    return f"{heading.column.name} ({part.groups[heading.group]})"


def _bullets(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(f"- {escaped(line)}" for line in lines)


def _numbered(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(f"{i}. {escaped(line)}" for i, line in enumerate(lines, start=1))
