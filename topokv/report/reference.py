"""The columns as a Markdown table, for docs/report.md: `python -m topokv.report.reference`."""

from __future__ import annotations

from topokv.report.columns import COLUMNS, Column
from topokv.report.formats.as_markdown import table

_HEADERS = ("column", "unit", "shown", "meaning")


def columns_table() -> str:
    """One line for each column: its name, unit, whether a narrow table shows it, and meaning."""
    rows = [(column.name, _unit(column), _place(column), column.meaning) for column in COLUMNS]
    return table(_HEADERS, rows, [False] * len(_HEADERS))


def _unit(column: Column) -> str:
    return {"count": "", "change": "%"}.get(column.unit, column.unit)


def _place(column: Column) -> str:
    if column.role == "asked":
        return "where rows differ"
    return "always" if column.narrow else "--wide"


if __name__ == "__main__":
    print(columns_table())
