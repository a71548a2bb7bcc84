"""The tests part of a report: one line a backend and machine, and what failed or was skipped."""

from __future__ import annotations

from collections.abc import Sequence

from topokv.report.entries import MachineKey, Suite, torch_of
from topokv.report.notes import ending

_WHERE = ("what", "on", "torch", "python", "device")
_COUNTS = ("passed", "failed", "skipped", "seconds")
HEADERS = (*_WHERE, *_COUNTS, "status")
# Which of HEADERS are numbers.
COUNTED = tuple(HEADERS.index(name) for name in _COUNTS)
# Which a narrow table leaves out, the first first: the legend says them too.
SPARED = tuple(HEADERS.index(name) for name in ("device", "torch", "python"))
MOST_FAILURES = 20


def cells(suite: Suite, names: dict[MachineKey, str]) -> tuple[str, ...]:
    """The suite's line, one text for each of HEADERS."""
    env = suite.run.environment
    return (
        suite.run.kind,
        names[suite.machine],
        torch_of(suite.run),
        str(env.get("python") or ""),
        str(env.get("device") or ""),
        *(str(n) if suite.ran else "" for n in (suite.passed, suite.failed, suite.skipped)),
        "" if suite.seconds is None else f"{suite.seconds:.1f}",
        suite.status,
    )


def remarks(suite: Suite, name: str) -> list[str]:
    """Lines below the table: where and why it failed, or why tests were skipped."""
    lines = [
        f"{name}: failed at {failure.step}: {failure.where}: {failure.message}"
        for failure in suite.failures[:MOST_FAILURES]
    ]
    more = len(suite.failures) - len(lines)
    if more:
        lines.append(f"{name}: {more} failures more, in {suite.source}")
    if suite.status != "ok" and not suite.failures:
        lines.append(f"{name}: {ending(suite.status, suite.step, suite.reason)}")
    told = suite.reason if suite.status == "skipped" else None
    lines += [f"{name}: {_skipped(n)}: {why}" for why, n in suite.skips if why != told]
    return lines


def all_remarks(suites: Sequence[Suite], names: dict[MachineKey, str]) -> list[str]:
    """Those of all suites, each begun with what it was and where."""
    return [
        line
        for suite in suites
        for line in remarks(suite, f"{suite.run.kind} on {names[suite.machine]}")
    ]


def _skipped(count: int) -> str:
    return "1 skipped" if count == 1 else f"{count} skipped"
