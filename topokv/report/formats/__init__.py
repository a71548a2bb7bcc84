"""One file for each way to write a report down; FORMATS is the list that the command offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from topokv.core import choose
from topokv.report.report import Report


@dataclass(frozen=True, slots=True)
class Format:
    """A format's name, the module whose `render(report)` writes it, and the file it is kept in.

    `file` is what a report without `--format` leaves; None where it leaves none.
    """

    name: str
    module: str
    file: str | None = None

    def render(self, report: Report) -> str:
        """The report as this format's text; the module is loaded only now."""
        write: Callable[[Report], str] = import_module(f"{__name__}.{self.module}").render
        return write(report)


FORMATS = (
    Format("text", "as_text"),
    Format("markdown", "as_markdown", "comparison.md"),
    Format("csv", "as_csv", "comparison.csv"),
    Format("json", "as_json", "comparison.json"),
    Format("html", "as_html", "report.html"),
    Format("benchmark-json", "as_benchmark_json"),
)


def format_named(name: str) -> Format:
    """The format of that name; ValueError for another."""
    return choose("format", name, FORMATS)


def format_names() -> tuple[str, ...]:
    """The names of FORMATS, in order."""
    return tuple(candidate.name for candidate in FORMATS)
