"""`--where`, `--sort` and `--columns`: which rows, in which order."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from topokv.report.columns import Column, named
from topokv.report.entries import Cell, Entry

_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One `--where`: a column, a comparison, and the values after it."""

    column: Column
    comparison: str
    values: tuple[str, ...]

    def holds(self, entry: Entry) -> bool:
        cell = self.column.value(entry)
        if self.comparison in ("=", "!="):
            return any(_equal(cell, value) for value in self.values) == (self.comparison == "=")
        if cell is None or isinstance(cell, str):
            return False
        return _ORDER[self.comparison](cell, float(self.values[0]))


def condition(text: str, columns: tuple[Column, ...]) -> Condition:
    """The condition that `text` states: `selector=witness,quest`, `speedup>=2`, `status!=ok`.

    Raises ValueError for another form, an unknown column, or an order against text.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"cannot read the condition {text!r}; write COLUMN=VALUE, or one of != < <= > >="
        )
    name, comparison, value = match.groups()
    (column,) = named([name], columns)
    if comparison in _ORDER:
        _check_number(text, value)
        return Condition(column, comparison, (value,))
    return Condition(column, comparison, tuple(part.strip() for part in value.split(",")))


def kept(entries: Iterable[Entry], conditions: Sequence[Condition]) -> list[Entry]:
    """The entries for which every condition holds."""
    return [entry for entry in entries if all(c.holds(entry) for c in conditions)]


def ordered(
    entries: Sequence[Entry], keys: Sequence[str], columns: tuple[Column, ...]
) -> list[Entry]:
    """The entries sorted by the columns `keys`, first one first; `-speedup` is largest first.

    Entries without a cell come last either way.
    """
    result = list(entries)
    for key in reversed(keys):
        (column,) = named([key.removeprefix("-")], columns)
        full = [entry for entry in result if column.value(entry) is not None]
        empty = [entry for entry in result if column.value(entry) is None]
        result = _sorted(full, column, largest_first=key.startswith("-")) + empty
    return result


def _sorted(entries: list[Entry], column: Column, *, largest_first: bool) -> list[Entry]:
    """Numbers before text, each among their own; equal ones stay in order."""

    def key(entry: Entry) -> tuple[bool, Any]:
        cell = column.value(entry)
        return (isinstance(cell, str), cell)

    return sorted(entries, key=key, reverse=largest_first)


def _equal(cell: Cell, value: str) -> bool:
    if cell is None:
        return value == ""
    if isinstance(cell, str):
        return cell == value
    try:
        return cell == float(value)
    except ValueError:
        return False


def _check_number(text: str, value: str) -> None:
    try:
        float(value)
    except ValueError as error:
        raise ValueError(f"the condition {text!r} needs a number, got {value!r}") from error
