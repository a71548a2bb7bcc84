"""Flat records as CSV, one line for each row of each machine, ready for a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any

from topokv.report.formats.as_json import records
from topokv.report.report import Report

# A spreadsheet takes a cell that begins so for a formula, and would run it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def render(report: Report) -> str:
    """The report as CSV with a header line; empty where a field does not apply."""
    rows = records(report)
    header = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """The value; text that a spreadsheet would run is quoted with an apostrophe."""
    text = "; ".join(map(str, value)) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text
