"""The rows of the page's large table, small: by column, each text once.

A column's texts lie in the order of their values and its cells are places among them, so that a
browser can sort by place. -1 is an empty cell. A column with one text in all rows has no cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topokv.report.columns import FIRST_FIVE, Column
from topokv.report.entries import Cell, Entry
from topokv.report.notes import remarks
from topokv.report.report import Report

# What the table shows before "all columns" is ticked; on a phone only COMMON ones.
_MAIN = (*FIRST_FIVE, "recall", "selector", "on", "step_speedup", "interval", "gap_closed")
_ALSO_MAIN = ("workload", "layer", "note")
_COMMON = ("selected_tokens", "speedup", "recall", "selector", "on")
# Told in the page's own column `note`, or by the file's place.
_LEFT_OUT = ("flags", "reason", "step", "source", "created")


def packed(report: Report) -> dict[str, Any]:
    """`{count, columns}`, ready for JSON."""
    entries = report.entries
    columns = [column for column in _columns(report) if column["texts"]]
    order = {name: i for i, name in enumerate((*_MAIN, *_ALSO_MAIN))}
    columns.sort(key=lambda column: order.get(column["name"], len(order)))
    return {"count": len(entries), "columns": columns}


def _columns(report: Report) -> list[dict[str, Any]]:
    entries, names = report.entries, report.legend.names
    own = [
        ("on", "where the row was measured", [names[entry.machine] for entry in entries]),
        ("note", "what to know of the row", ["; ".join(remarks(entry)) for entry in entries]),
    ]
    found = [_column(name, meaning, texts, texts, is_number=False) for name, meaning, texts in own]
    told = (column for column in report.columns if column.name not in _LEFT_OUT)
    return found + [_from_entries(column, entries) for column in told]


def _from_entries(column: Column, entries: Sequence[Entry]) -> dict[str, Any]:
    values = [column.value(entry) for entry in entries]
    texts = [column.show(entry) for entry in entries]
    return _column(column.name, column.meaning, values, texts, is_number=not column.is_text)


def _column(
    name: str, meaning: str, values: Sequence[Cell], texts: Sequence[str], *, is_number: bool
) -> dict[str, Any]:
    first: dict[str, Cell] = {}
    for text, value in zip(texts, values, strict=True):
        if text:
            first.setdefault(text, value)
    ordered = sorted(first, key=lambda text: _sortable(first[text]))
    places = {text: i for i, text in enumerate(ordered)}
    cells = [places.get(text, -1) for text in texts]
    rare = "" if name in _COMMON else " rare"
    return {
        "name": name,
        "meaning": meaning,
        "isNumber": is_number,
        "isMain": name in _MAIN or name in _ALSO_MAIN,
        "classes": f"{'number' if is_number else name}{rare}",
        "texts": ordered,
        "cells": None if set(cells) == {0} else cells,
    }


def _sortable(value: Cell) -> tuple[bool, Any]:
    return (isinstance(value, str), value)
