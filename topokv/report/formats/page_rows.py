"""The rows of the page's large table, small: by column, each text once.

A column's texts lie in the order of their values and its cells are places among them, so that a
browser can sort by place. -1 is an empty cell. A column with one text in all rows has no cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topokv.report.columns import FIRST_FIVE, Column
from topokv.report.entries import Cell, Entry
from topokv.report.notes import name_of, remarks
from topokv.report.report import Report

# What the table shows before "all columns" is ticked; on a phone only COMMON ones.
_MAIN = (*FIRST_FIVE, "recall", "selector", "on", "step_speedup", "interval", "gap_closed")
_ALSO_MAIN = ("change", "verdict", "workload", "layer", "note")
_COMMON = ("selected_tokens", "speedup", "recall", "selector", "on")
_LEFT_OUT = ("source", "created")


def packed(report: Report) -> dict[str, Any]:
    """`{count, columns}`, ready for JSON; columns that are empty in every row are left out."""
    entries, names = report.entries, report.legend.names
    on = [names[entry.machine] for entry in entries]
    note = list(map(_note, entries))
    columns = [
        _packed("on", "where the row was measured", on, on),
        _packed("note", "what to know of the row; more in flags and reason", note, note),
        *(_column(column, entries) for column in report.columns if column.name not in _LEFT_OUT),
    ]
    order = {name: i for i, name in enumerate((*_MAIN, *_ALSO_MAIN))}
    filled = [column for column in columns if column["texts"]]
    filled.sort(key=lambda column: order.get(column["name"], len(order)))
    return {"count": len(entries), "columns": filled}


def _column(column: Column, entries: Sequence[Entry]) -> dict[str, Any]:
    values = [column.value(entry) for entry in entries]
    texts = {value: column.text(value) for value in set(values)}
    told = [texts[value] for value in values]
    return _packed(column.name, column.meaning, values, told, is_number=not column.is_text)


def _note(entry: Entry) -> str:
    """How the row ended if not well, and the names of its flags without their details."""
    return "; ".join(dict.fromkeys(name_of(remark) for remark in remarks(entry)))


def _packed(
    name: str,
    meaning: str,
    values: Sequence[Cell],
    texts: Sequence[str],
    *,
    is_number: bool = False,
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
