"""Whole numbers that sizes and counts must be, checked with one wording."""

from __future__ import annotations

from collections.abc import Mapping


def check_sizes(**sizes: int) -> None:
    """Raise, naming the argument, unless each is a whole number of at least 1."""
    check_whole(1, sizes)


def check_counts(**counts: int) -> None:
    """Raise, naming the argument, unless each is a whole number of at least 0."""
    check_whole(0, counts)


def check_whole(least: int, numbers: Mapping[str, int]) -> None:
    """Raise TypeError for what is no whole number, ValueError for one below `least`."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} must be a whole number, got {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
