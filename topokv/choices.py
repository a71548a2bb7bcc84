"""One line for every name that is not one of those there are."""

from __future__ import annotations

from collections.abc import Iterable


def check_choice(kind: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError, which lists the valid ones, unless `value` is one of `choices`."""
    valid = tuple(choices)
    if value not in valid:
        raise ValueError(f"unknown {kind} {value!r}; expected one of {', '.join(map(repr, valid))}")
