"""The `customSmallerIsBetter` JSON of github-action-benchmark: times to follow over commits.

Only times are in it: they are what that action takes, and all of them are better when smaller.
"""

from __future__ import annotations

import json
from typing import Any

from topokv.report.columns import COLUMNS
from topokv.report.entries import Entry
from topokv.report.report import Report
from topokv.report.table import distinguishing

_TIMES = ("dense_sdpa_ms", "sparse_selected_ms", "step_ms")


def render(report: Report) -> str:
    """A JSON list of `{name, unit, value, range, extra}`, one for each time of each row."""
    asked = [column for column in COLUMNS if column.name in ("workload", "dtype")]
    asked += [c for c in distinguishing(report.entries) if c not in asked]
    records = []
    for entry in report.entries:
        told = [f"{column.name} {column.show(entry)}" for column in asked if column.show(entry)]
        name = ", ".join([report.legend.names[entry.machine], *told])
        records += [
            _record(entry, name, metric) for metric in _TIMES if entry.metric(metric) is not None
        ]
    return json.dumps(records, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _record(entry: Entry, name: str, metric: str) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": f"{name}: {metric}",
        "unit": "ms",
        "value": entry.metric(metric),
        "extra": entry.run.environment.get("device") or "",
    }
    width = _half_width(entry) if metric == "sparse_selected_ms" else None
    return record if width is None else record | {"range": f"± {width:.2g} %"}


def _half_width(entry: Entry) -> float | None:
    """Half the interval of the speedup, in percent: the noise of the sparse time beside dense."""
    low, high, speedup = (entry.metric(f"speedup{end}") for end in ("_low", "_high", ""))
    if low is None or high is None or not speedup:
        return None
    return 50 * (high - low) / speedup
