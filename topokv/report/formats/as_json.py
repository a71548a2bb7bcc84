"""Flat records as JSON: a list, one object for each row of each machine, null where empty.

Test suites are in it as records of kind `tests`, with their own counts.
"""

from __future__ import annotations

import json
from typing import Any

from topokv.report.entries import Entry, Suite
from topokv.report.report import Report, flat


def render(report: Report) -> str:
    """The report as a JSON list."""
    return json.dumps(records(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def records(report: Report) -> list[dict[str, Any]]:
    """The rows, then the suites, each a flat record with the same fields."""
    columns, entries = flat(report)
    rows = [{c.name: _cell(c.name, c.value(entry), entry) for c in columns} for entry in entries]
    empty = dict.fromkeys(column.name for column in columns)
    wanted = report.layout.columns is None
    return rows + [empty | _suite_record(suite, set(empty), wanted) for suite in report.suites]


def _cell(name: str, cell: Any, entry: Entry) -> Any:
    return list(entry.row.flags) if name == "flags" else cell


def _suite_record(suite: Suite, known: set[str], with_counts: bool) -> dict[str, Any]:
    env = suite.run.environment
    shared: dict[str, Any] = {
        "kind": suite.run.kind,
        "backend": suite.run.backend,
        "device": env.get("device"),
        "torch": env.get("torch"),
        "torch_build": env.get("torch_build"),
        "fingerprint": env.get("fingerprint"),
        "provenance": suite.run.provenance,
        "created": suite.run.created,
        "source": suite.source,
        "status": suite.status,
        "step": suite.step,
        "reason": suite.reason,
        "flags": [],
    }
    counts = {"passed": suite.passed, "failed": suite.failed, "skipped": suite.skipped}
    return {n: v for n, v in shared.items() if n in known} | (counts if with_counts else {})
