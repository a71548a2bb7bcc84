"""The one place that knows pytest-json-report's format, and its traps.

Errors of a module's import and skips of a whole module appear only among `collectors`; a skip's
reason is a tuple in a string; the plugin writes NaN bare. The extra top-level field `topokv` is
this project's own: `{backend, step, status, reason, environment}`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from topokv.report.entries import Failure, Suite
from topokv.results import STATUSES, STEPS, ResultFileError, Run, checked_environment

_BAD = ("failed", "error")
_PHASES = ("setup", "call", "teardown")
_SKIPPED = "Skipped: "
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def looks_like(data: object) -> bool:
    """Whether `data` is a report of pytest-json-report rather than a results file of topokv."""
    return isinstance(data, dict) and "schema" not in data and {"exitcode", "summary"} <= set(data)


def suite(data: Mapping[str, Any], source: str) -> Suite:
    """The suite that a pytest-json-report file holds.

    Raises ResultFileError, naming the field, where the file is not what the plugin writes.
    """
    try:
        return _suite(data, source)
    except ResultFileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ResultFileError(f"{source}: not a pytest-json-report file ({what})") from error


def _suite(data: Mapping[str, Any], source: str) -> Suite:
    own = data.get("topokv") or {}
    tests, collectors = list(data.get("tests", [])), list(data.get("collectors", []))
    failures = (*map(_collect_failure, _bad(collectors)), *map(_test_failure, _bad(tests)))
    skips = Counter([*map(_skip_reason, _skipped(collectors)), *map(_skip_reason, _skipped(tests))])
    summary = data["summary"]
    passed = int(summary.get("passed", 0)) + int(summary.get("xpassed", 0))
    skipped = int(skips.total()) + int(summary.get("xfailed", 0))
    status, step, reason = _verdict(own, int(data["exitcode"]), passed, failures, skips)
    return Suite(
        run=_run(data, own, source),
        source=source,
        status=status,
        step=step,
        reason=reason,
        passed=passed,
        failed=len(failures),
        skipped=skipped,
        seconds=float(data["duration"]) if data.get("duration") is not None else None,
        failures=failures,
        skips=tuple(skips.most_common()),
    )


def _run(data: Mapping[str, Any], own: Mapping[str, Any], source: str) -> Run:
    created = datetime.fromtimestamp(float(data["created"]), UTC)
    backend = own.get("backend") or PurePath(source).stem.removeprefix("tests-")
    return Run(
        kind="tests",
        backend=str(backend),
        created=created.isoformat(timespec="seconds"),
        environment=checked_environment(own.get("environment") or {}, source),
    )


def _verdict(
    own: Mapping[str, Any],
    exitcode: int,
    passed: int,
    failures: tuple[Failure, ...],
    skips: Counter[str],
) -> tuple[str, str | None, str | None]:
    """Status, step and reason: what pytest saw, then what the session said of itself."""
    if failures:
        return "failed", failures[0].step, failures[0].message
    status, step, reason = own.get("status"), own.get("step"), own.get("reason")
    if status in STATUSES and status != "ok":
        return str(status), step if step in STEPS else None, _line(reason) if reason else None
    if exitcode == 2:
        return "interrupted", "test", "pytest was interrupted"
    if exitcode not in (0, 5):
        return "failed", "test", f"pytest exited with {exitcode}"
    if not passed:
        why = next(iter(skips), "no test was collected")
        return "skipped", "test" if skips else "collect", why
    return "ok", None, None


def _bad(items: list[Any]) -> Iterator[Mapping[str, Any]]:
    return (item for item in items if item["outcome"] in _BAD)


def _skipped(items: list[Any]) -> Iterator[Mapping[str, Any]]:
    return (item for item in items if item["outcome"] == "skipped")


def _collect_failure(item: Mapping[str, Any]) -> Failure:
    message = _last_line(item.get("longrepr") or "collection failed")
    return Failure(step="collect", where=item["nodeid"] or ".", message=message)


def _test_failure(item: Mapping[str, Any]) -> Failure:
    phase = _phase(item, "failed")
    crash = phase.get("crash") or {}
    message = crash.get("message") or _last_line(phase.get("longrepr") or item["outcome"])
    return Failure(step="test", where=item["nodeid"], message=_line(message))


def _phase(item: Mapping[str, Any], outcome: str) -> Mapping[str, Any]:
    """The phase that ended so; a collector has none and stands for itself."""
    phases = (item[name] for name in _PHASES if name in item)
    return next((phase for phase in phases if phase["outcome"] == outcome), item)


def _skip_reason(item: Mapping[str, Any]) -> str:
    phase = _phase(item, "skipped")
    text = str(phase.get("longrepr") or "no reason given")
    with suppress(ValueError, SyntaxError, IndexError, TypeError):
        text = str(ast.literal_eval(text)[-1])
    return _line(text.removeprefix(_SKIPPED))


def _line(text: object) -> str:
    """The first line that says something, without terminal colours."""
    lines = [line.strip() for line in _ANSI.sub("", str(text)).splitlines() if line.strip()]
    return lines[0] if lines else ""


def _last_line(text: object) -> str:
    lines = [line.strip() for line in _ANSI.sub("", str(text)).splitlines() if line.strip()]
    return lines[-1].removeprefix("E ").strip() if lines else ""
