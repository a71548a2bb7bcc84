"""One self-contained HTML page: no network, no font, no script but its own.

Every text goes through the template's escaping; the only markup let in is what `draw` made.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import Any

from topokv.report import findings, suites
from topokv.report.columns import Column
from topokv.report.entries import Entry
from topokv.report.extra import need
from topokv.report.formats.page_rows import packed
from topokv.report.groups import describe
from topokv.report.numbers import shown
from topokv.report.plots.figures import BarFigure, Figure, figures, table_of
from topokv.report.report import Report
from topokv.results import Run

_FILTERS = ("on", "workload", "selector", "selected_tokens", "seq_len", "dtype", "layer", "status")
MOST_MACHINES = 4


def render(report: Report) -> str:
    """The page; ValueError in one line where jinja2 or matplotlib is not installed."""
    jinja2 = need("jinja2")
    need("matplotlib")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    page = environment.from_string(_part("page.html.j2"))
    script, safe = _part("table.js"), jinja2.utils.markupsafe.Markup
    text: str = page.render(
        style=safe(_part("style.css")),
        script=safe(script),
        script_hash=safe(_hash(script)),
        figures=[_figure(figure, safe) for figure in figures(report)],
        **_answer(report),
        **_rows(report),
        **_tests(report),
        **_surroundings(report),
    )
    return text


def _part(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What the page's security policy knows its one script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _answer(report: Report) -> dict[str, Any]:
    choice = findings.choose(report.entries)
    tokens = choice.tokens if choice else findings.headline_tokens(report.entries)
    gains = findings.gains(report.entries, findings.usable(report.entries), tokens)
    told, why = findings.answer(choice)
    return {
        "choice": choice,
        "tokens": tokens,
        "told": told,
        "why": why,
        "gains": [_gain(entry, report) for entry in gains],
        **(_ranking(report, choice, gains) if choice else {}),
    }


def _gain(entry: Entry, report: Report) -> dict[str, str]:
    low, high = shown(entry.metric("speedup_low")), shown(entry.metric("speedup_high"))
    return {
        "on": report.legend.names[entry.machine],
        "what": f"{entry.row.workload}, {entry.row.seq_len:,} tokens, {entry.row.dtype}, "
        f"{entry.row.selector}",
        "attend": shown(entry.metric("speedup"), "x"),
        "interval": f"{low}–{high}" if low and high else "none",
        "step": shown(entry.metric("step_speedup"), "x"),
        "worth": findings.worth(entry),
        "doubt": "; ".join(flag for flag in entry.row.flags if flag.startswith("unstable")),
    }


def _ranking(report: Report, choice: findings.Choice, gains: list[Entry]) -> dict[str, Any]:
    """Every selector at the headline budget: what it keeps, and what its step gains."""
    longest: dict[Any, Entry] = {}
    for entry in sorted(gains, key=lambda entry: -(entry.row.seq_len or 0)):
        longest.setdefault(entry.machine, entry)
    whole = [entry for entry in longest.values() if entry.metric("step_speedup") is not None]
    machines = whole[:MOST_MACHINES]
    lines = []
    for place in findings.ranking(report.entries):
        rows = [findings.beside(report.entries, gain, place.selector) for gain in machines]
        steps = [shown(row.metric("step_speedup"), "x") if row else "" for row in rows]
        cells = [shown(place.recall, "%"), _with_interval(place), *steps]
        lines.append({"selector": place.selector, "kind": _kind(place, choice), "cells": cells})
    names = report.legend.names
    return {
        "ranking": lines,
        "ranking_machines": [names[entry.machine] for entry in machines],
        "ranking_note": _ranking_note(choice, machines),
    }


def _ranking_note(choice: findings.Choice, machines: list[Entry]) -> str:
    note = (
        f"Kept: share of the attention mass, mean over {', '.join(choice.workloads)}. Gap closed: "
        "0 % is choosing at random, 100 % the oracle, in brackets the outer ends of "
        "the 95 % intervals; these two are the ends of the scale, not selectors to use."
    )
    shapes = dict.fromkeys(f"{e.row.workload}, {e.row.seq_len:,} tokens" for e in machines)
    step = (
        f" Step: dense over sparse and all that choosing needs in every step ({'; '.join(shapes)})."
    )
    return note + (step if machines else "")


def _kind(place: findings.Place, choice: findings.Choice) -> str:
    if place.selector == choice.selector:
        return "chosen"
    return "scale" if place.selector in findings.ENDS_OF_SCALE else ""


def _with_interval(place: findings.Place) -> str:
    if place.low is None or place.high is None:
        return shown(place.gap_closed, "%")
    return f"{shown(place.gap_closed, '%')} ({100 * place.low:.0f}–{100 * place.high:.0f})"


def _rows(report: Report) -> dict[str, Any]:
    rows = packed(report)
    choices = [
        {"name": column["name"], "texts": column["texts"]}
        for name in _FILTERS
        for column in rows["columns"]
        if column["name"] == name and len(column["texts"]) > 1
    ]
    return {"rows": rows, "filters": choices}


def _figure(figure: Figure, safe: Any) -> dict[str, Any]:
    from topokv.report.plots.draw import inline_svg

    headers, rows, labels = table_of(figure)
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "svg": safe(inline_svg(figure)),
        "corner": "" if isinstance(figure, BarFigure) else "selected tokens",
        "headers": headers,
        "rows": [
            (label, [shown(cell, figure.unit) for cell in cells])
            for label, cells in zip(labels, rows, strict=True)
        ],
    }


def _tests(report: Report) -> dict[str, Any]:
    names = report.legend.names
    return {
        "suite_headers": suites.HEADERS,
        "suites": [suites.cells(suite, names) for suite in report.suites],
        "suite_remarks": suites.all_remarks(report.suites, names),
    }


def _surroundings(report: Report) -> dict[str, Any]:
    sources = sorted(report.sources)
    few = ", ".join(sources) if len(sources) <= MOST_MACHINES else f"{len(sources)} files"
    return {
        "sources": few,
        "machines": [
            {
                "name": report.legend.names[key],
                "line": describe(run),
                "fields": list(_fields(run)),
            }
            for key, run in report.legend.runs.items()
        ],
        "meanings": [column for column in report.columns if _is_filled(column, report)],
        "remarks": [*report.lines, *report.refused],
    }


def _fields(run: Run) -> Iterable[tuple[str, str]]:
    """What is known of a machine and of how its run was asked for."""
    yield "command", " ".join(run.command) or "not recorded"
    for key, value in (*run.settings.items(), *run.environment.items()):
        if value not in (None, [], ""):
            yield key, str(value)


def _is_filled(column: Column, report: Report) -> bool:
    return any(column.value(entry) not in (None, "") for entry in report.entries)
