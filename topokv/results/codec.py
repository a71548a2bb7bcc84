"""A run as JSON and back: every field checked, every error with the path to the bad field."""

from __future__ import annotations

import errno
import json
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from topokv.core import LARGEST_BYTES, read_text, shown, write_text
from topokv.results.record import (
    COUNT_FIELDS,
    KINDS,
    PROVENANCES,
    ROW_FIELDS,
    STATUSES,
    STEPS,
    TEXT_FIELDS,
    ResultFileError,
    Row,
    Run,
    Samples,
)

SCHEMA = "topokv-results"


SCHEMA_VERSION = 1


# A row's samples. Inside a string the quotes would be escaped, so this is never part of one.
_SAMPLES = re.compile(r'"samples":\s*\{[^{}]*\}')


# A JSON text without these holds only signs to read; others may act on a terminal, turn text around
# or fit into no file.
_ESCAPED = re.compile(r"\\[ubfrt]|[^\n\x20-\x7e]")


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


# Deeper than anything written here, and shallow enough for whoever writes it down again.
_DEEPEST = 8


def to_json(run: Run) -> dict[str, Any]:
    """The run as plain JSON values; metrics lie flat among a row's fields."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": run.kind,
        "backend": run.backend,
        "created": run.created,
        "provenance": run.provenance,
        "command": list(run.command),
        "environment": dict(run.environment),
        "settings": dict(run.settings),
        "rows": [_row_to_json(row) for row in run.rows],
    }


def _row_to_json(row: Row) -> dict[str, Any]:
    clash = ROW_FIELDS & row.metrics.keys()
    if clash:
        raise ValueError(f"metric {min(clash)!r} has the name of a row's field")
    plain = {
        f.name: getattr(row, f.name) for f in fields(Row) if f.name not in ("metrics", "samples")
    }
    return plain | {"flags": list(row.flags)} | dict(row.metrics) | {"samples": dict(row.samples)}


def from_json(data: object, name: str, *, with_samples: bool = True) -> Run:
    """The run in `data`, every field checked; `name` (a file's) begins each error's message.

    Samples are most of a file; a reader that shows none saves their checking and their memory.
    Raises ResultFileError with the path to the first bad field.
    """
    at = _Cursor(name)
    top = at.mapping(data)
    if top.get("schema") != SCHEMA:
        raise at.error(f"not a results file: no field schema with value {SCHEMA!r}")
    version = at.down("schema_version").count(top.get("schema_version"))
    if version != SCHEMA_VERSION:
        raise at.down("schema_version").error(
            f"this topokv reads version {SCHEMA_VERSION}, the file has version {version}"
        )
    rows = at.down("rows").sequence(top.get("rows"))
    return Run(
        kind=at.down("kind").one_of(top.get("kind"), KINDS),
        backend=at.down("backend").text(top.get("backend")),
        created=at.down("created").text(top.get("created")),
        provenance=at.down("provenance").one_of(top.get("provenance", "measured"), PROVENANCES),
        command=at.down("command").texts(top.get("command", [])),
        environment=at.down("environment").plain_mapping(top.get("environment", {})),
        settings=at.down("settings").plain_mapping(top.get("settings", {})),
        rows=tuple(
            _row_from_json(row, at.down(f"rows[{i}]"), with_samples) for i, row in enumerate(rows)
        ),
    )


def _row_from_json(data: object, at: _Cursor, with_samples: bool) -> Row:
    row = at.mapping(data)
    for name in row.keys() - ROW_FIELDS:
        # It becomes a column's heading, in a spreadsheet or on a page.
        if not name.isidentifier():
            raise at.expected("fields named by letters, digits and '_'", name)
    known: dict[str, Any] = {}
    for name in (*TEXT_FIELDS, "reason", "dense_backend", "sparse_backend"):
        known[name] = at.down(name).optional_text(row.get(name))
    for name in COUNT_FIELDS:
        known[name] = at.down(name).optional_count(row.get(name))
    known["status"] = at.down("status").one_of(row.get("status"), STATUSES)
    if row.get("step") is not None:
        known["step"] = at.down("step").one_of(row["step"], STEPS)
    known["flags"] = at.down("flags").texts(row.get("flags", []))
    samples = at.down("samples").mapping(row.get("samples", {})) if with_samples else {}
    known["samples"] = {n: at.down(f"samples.{n}").samples(v) for n, v in samples.items()}
    known["metrics"] = {
        # Nearly all are plain numbers, and spelling out where each stands would take longest.
        name: value if _is_plain(value) else at.down(name).optional_number(value)
        for name, value in row.items()
        if name not in ROW_FIELDS
    }
    if known["metrics"]:
        # A number means nothing without the sizes that it was measured at.
        for name in ("seq_len", "selected_tokens"):
            at.down(name).size(row.get(name))
    return Row(**known)


def _is_plain(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def checked_environment(value: object, name: str) -> dict[str, Any]:
    """The environment that a file of another program holds; errors are those of `from_json`."""
    return _Cursor(name).down("environment").plain_mapping(value)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A place in a results file: it checks the value found there, or says where it stands."""

    path: str
    top: bool = True

    def down(self, name: str) -> _Cursor:
        return _Cursor(f"{self.path}: {name}" if self.top else f"{self.path}.{name}", top=False)

    def error(self, message: str) -> ResultFileError:
        return ResultFileError(f"{self.path}: {message}")

    def expected(self, what: str, value: object) -> ResultFileError:
        return self.error(f"expected {what}, got {_shown(value)}")

    def mapping(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.expected("an object", value)
        return value

    def sequence(self, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self.expected("a list", value)
        return value

    def plain_mapping(self, value: object) -> dict[str, Any]:
        """An object of JSON values that any program can write down again."""
        found = self.mapping(value)
        self._require_plain(found, _DEEPEST)
        return found

    def _require_plain(self, value: object, depth: int) -> None:
        if depth == 0:
            raise self.error(f"nested more than {_DEEPEST} deep")
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, item in items:
                self.down(str(name))._require_plain(item, depth - 1)
        elif isinstance(value, int | float):
            self.number(value + 0)

    def text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.expected("a string", value)
        return value

    def optional_text(self, value: object) -> str | None:
        return None if value is None else self.text(value)

    def texts(self, value: object) -> tuple[str, ...]:
        return tuple(self.text(item) for item in self.sequence(value))

    def one_of(self, value: object, choices: tuple[str, ...]) -> Any:
        if value not in choices:
            raise self.expected(f"one of {', '.join(map(repr, choices))}", value)
        return value

    def count(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.expected("a whole number, 0 or more", value)
        self.number(value)
        return value

    def size(self, value: object) -> int:
        if self.optional_count(value) in (None, 0):
            raise self.expected("a whole number, 1 or more", value)
        return self.count(value)

    def optional_count(self, value: object) -> int | None:
        return None if value is None else self.count(value)

    def number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.expected("a number", value)
        if not abs(value) <= sys.float_info.max:
            raise self.expected("a finite number", value)
        return value

    def optional_number(self, value: object) -> float | None:
        return None if value is None else self.number(value)

    def samples(self, value: object) -> Samples:
        return tuple(tuple(map(self.number, self.sequence(p))) for p in self.sequence(value))


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def write_json(path: Path, data: object) -> None:
    """`data` at `path`, whole or not at all.

    Raises OSError for what can't be written or would be more than `load_json` reads.
    """
    text = json.dumps(data, allow_nan=False, indent=1) + "\n"
    if len(text) > LARGEST_BYTES:
        limit = f"would be larger than {LARGEST_BYTES >> 20} MiB; ask for fewer rows or rounds"
        raise OSError(errno.EFBIG, limit, str(path))
    write_text(path, text)


def write(path: Path, run: Run) -> None:
    """Write `run` to `path`; a reader never sees half a file."""
    write_json(path, to_json(run))


def read(path: Path) -> Run:
    """The run in the file at `path`.

    Raises ResultFileError, in one line, for a file that is missing, not JSON or not a results file.
    """
    return from_json(load_json(path), shown(path))


def load_json(path: Path, *, bare_nan: bool = False, with_samples: bool = True) -> object:
    """The JSON value in the file at `path`; ResultFileError in one line where there is none.

    NaN and Infinity are not JSON and are refused, unless `bare_nan`: other programs write them.
    Without samples a large file is read in a fraction of the time and memory.
    """
    constant = float if bare_nan else _refuse_constant
    text = _text(path)
    try:
        if not with_samples:
            with suppress(ValueError):
                return _parsed(_SAMPLES.sub('"samples": {}', text), constant)
        return _parsed(text, constant)
    except RecursionError as error:
        raise ResultFileError(f"{shown(path)}: not JSON: nested too deeply") from error
    except ValueError as error:
        raise ResultFileError(f"{shown(path)}: not JSON: {error}") from error


def _parsed(text: str, constant: Callable[[str], float]) -> object:
    data: object = json.loads(text, parse_constant=constant)
    return _plain(data) if _ESCAPED.search(text) else data


def _plain(value: Any) -> Any:
    """`value` with `?` in its texts for every sign that is not one to read."""
    if isinstance(value, dict):
        return {_plain(name).replace("\n", "?"): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, str) or value.isprintable():
        return value
    text = _COLOUR.sub("", value).replace("\t", " ")
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise ResultFileError(f"{shown(path)}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise ResultFileError(f"{shown(path)}: {error}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
