"""Files and folders in, entries and suites out: nothing is left out without a line that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from topokv.core import real, shown
from topokv.report import pytest_json
from topokv.report.entries import Entry, Suite, machine_of, machine_order
from topokv.results import ResultFileError, Row, Run, from_json, load_json

# What a report itself leaves in a folder of results.
OWN_OUTPUT = frozenset({"comparison.json"})
# Committed runs of other machines: shown when they are named, not whenever results are merged.
REFERENCE_FOLDER = "reference"

_Item = TypeVar("_Item", Entry, Suite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """All that was read, and from which files. `passed_over` and `refused` are lines."""

    files: tuple[Path, ...]
    entries: tuple[Entry, ...]
    suites: tuple[Suite, ...]
    passed_over: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def collect(paths: Sequence[Path]) -> Collection:
    """Everything in the files and folders at `paths`, in a stable order.

    Of one measurement made twice on one machine the newest is kept. A file that is not a results
    file becomes a line in `refused`. Raises ValueError where there is nothing to read at all, and
    the file's own error where every file was refused.
    """
    entries: list[Entry] = []
    suites: list[Suite] = []
    refused: list[ResultFileError] = []
    files = find(paths)
    for path in files:
        try:
            _read_into(path, entries, suites)
        except ResultFileError as error:
            refused.append(error)
    if refused and not entries and not suites:
        raise refused[0] if len(refused) == 1 else ResultFileError("; ".join(map(str, refused)))
    kept, entries_over = _newest(entries, _entry_identity)
    suites_kept, suites_over = _newest(suites, _suite_identity)
    return Collection(
        files=tuple(files),
        entries=tuple(sorted(kept, key=lambda entry: machine_order(entry.machine))),
        suites=tuple(sorted(suites_kept, key=lambda suite: machine_order(suite.machine))),
        passed_over=(*entries_over, *suites_over),
        refused=tuple(map(str, refused)),
    )


def find(paths: Sequence[Path]) -> list[Path]:
    """The result files that `paths` name, each once: a folder stands for those in it and below.

    Raises ValueError where a path does not exist or a folder holds none.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if not path.is_dir() else sorted(_files_in(path))
        if not path.exists():
            raise ResultFileError(f"{shown(path)}: no such file or folder")
        if not inside:
            raise ResultFileError(
                f"{shown(path)}: no result files; `topokv bench` leaves one there"
            )
        found |= {real(file): file for file in inside}
    return list(found.values())


def _files_in(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.json"):
        parents = path.relative_to(folder).parts[:-1]
        hidden = any(part.startswith(".") for part in (*parents, path.name))
        if path.name not in OWN_OUTPUT and REFERENCE_FOLDER not in parents and not hidden:
            yield path


def _read_into(path: Path, entries: list[Entry], suites: list[Suite]) -> None:
    source = shown(path)
    data = load_json(path, bare_nan=True, with_samples=False)
    if isinstance(data, dict) and pytest_json.looks_like(data):
        suites.append(pytest_json.suite(data, source))
        return
    run = from_json(data, source, with_samples=False)
    head, machine = replace(run, rows=()), machine_of(run)
    for row in run.rows:
        if _never_began(row):
            suites.append(_suite(head, row, source))
        else:
            entries.append(Entry(row=row, run=head, machine=machine, source=source))


def _never_began(row: Row) -> bool:
    """Whether the row asks nothing: its run ended before the first measurement or test."""
    return all(value is None for value in row.key)


def _suite(run: Run, row: Row, source: str) -> Suite:
    return Suite(run=run, source=source, status=row.status, step=row.step, reason=row.reason)


def _entry_identity(entry: Entry) -> tuple[Any, ...]:
    return (entry.run.kind, entry.machine, entry.row.key)


def _suite_identity(suite: Suite) -> tuple[Any, ...]:
    # One machine runs the tests under several versions of Python.
    return (suite.run.kind, suite.machine, str(suite.run.environment.get("python")))


def _newest(items: Iterable[_Item], identity: Any) -> tuple[list[_Item], list[str]]:
    """The newest item of each identity, and a line for each file that lost to another."""
    kept: dict[Any, _Item] = {}
    lost: Counter[tuple[str, str]] = Counter()
    for item in items:
        held = kept.get(identity(item))
        if held is None:
            kept[identity(item)] = item
            continue
        old, new = (held, item) if _moment(held) <= _moment(item) else (item, held)
        kept[identity(item)] = new
        lost[old.source, new.source] += 1
    return list(kept.values()), [_passed_over(*pair, n) for pair, n in lost.items()]


def _passed_over(old: str, new: str, count: int) -> str:
    what = "1 result" if count == 1 else f"{count} results"
    return f"{old}: {what} passed over for newer ones of the same machine in {new}"


def _moment(item: Entry | Suite) -> datetime:
    try:
        moment = datetime.fromisoformat(item.run.created)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
