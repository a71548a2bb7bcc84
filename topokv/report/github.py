"""The summary of a GitHub Actions step: the report's Markdown, within what GitHub shows.

GitHub refuses a step's whole summary above 1 MiB. What does not fit is named, never cut in half.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from topokv.report.formats.as_markdown import blocks
from topokv.report.report import Report

VARIABLE = "GITHUB_STEP_SUMMARY"
LIMIT_BYTES = 1024 * 1024
# Room for the line that says what was left out.
_RESERVE_BYTES = 512


def append_summary(report: Report) -> None:
    """Add the report to the step's summary; ValueError outside GitHub Actions."""
    path = summary_file()
    used = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        file.write(fitted(blocks(report), LIMIT_BYTES - used))


def summary_file() -> Path:
    """The file of the step's summary; ValueError where VARIABLE does not name it."""
    target = os.environ.get(VARIABLE)
    if not target:
        raise ValueError(f"{VARIABLE} is not set; --github-summary works in GitHub Actions only")
    return Path(target)


def fitted(parts: Iterable[str], room: int) -> str:
    """The parts that fit into `room` bytes, in order, and a line that counts the others."""
    left, kept, dropped = room - _RESERVE_BYTES, [], 0
    for part in parts:
        size = len(part.encode()) + 2
        if size > left:
            dropped += 1
            continue
        kept.append(part)
        left -= size
    if dropped:
        what = "1 part is" if dropped == 1 else f"{dropped} parts are"
        kept.append(f"{what} too long for this summary: see comparison.md among the artifacts.")
    return "\n\n".join(kept) + "\n" if kept else ""
