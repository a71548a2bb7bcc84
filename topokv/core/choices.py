"""One line for every name that is not one of those there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Named(Protocol):
    """What is chosen by its name."""

    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


def check_choice(kind: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError, which lists the valid ones, unless `value` is one of `choices`."""
    valid = tuple(choices)
    if value not in valid:
        raise ValueError(f"unknown {kind} {value!r}; expected one of {', '.join(map(repr, valid))}")


def choose(kind: str, name: str, items: Iterable[Item]) -> Item:
    """The one of `items` that is so named; ValueError lists their names where none is."""
    by_name = {item.name: item for item in items}
    check_choice(kind, name, by_name)
    return by_name[name]
