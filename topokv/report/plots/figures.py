"""What each picture shows, as plain data: series of points, or stacked bars; no drawing here.

Each figure is one question. FIGURES is the list; a figure that has no data is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from topokv.report.entries import Entry
from topokv.report.findings import ENDS_OF_SCALE, gains, headline_tokens, usable
from topokv.report.groups import group_names
from topokv.report.report import Report

# More lines than this in one picture cannot be told apart.
MOST_SERIES = 8


@dataclass(frozen=True, slots=True)
class Point:
    """One value at a budget, with its interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A named line of points; `is_bound` marks a limit rather than a measurement."""

    name: str
    points: tuple[Point, ...]
    is_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigure:
    """Lines over the budget. `unit` is "x" or "%"."""

    name: str
    title: str
    caption: str
    y_label: str
    unit: str
    series: tuple[Series, ...]
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarFigure:
    """Horizontal bars, stacked of named parts: `bars` maps a label to its parts' values."""

    name: str
    title: str
    caption: str
    x_label: str
    unit: str
    parts: tuple[str, ...]
    bars: tuple[tuple[str, tuple[float | None, ...]], ...]


Figure = LineFigure | BarFigure


def figures(report: Report) -> list[Figure]:
    """The figures for which the report has data."""
    return [figure for build in FIGURES if (figure := build(report)) is not None]


def speedup_by_budget(report: Report) -> Figure | None:
    """Speedup against budget for each machine, with intervals and the ceiling."""
    entries = _one_shape([e for e in report.entries if _measured(e, "speedup")])
    if not entries:
        return None
    names = group_names(entries, report.legend.names)
    lines: dict[str, dict[float, Entry]] = defaultdict(dict)
    for entry in entries:
        name = names[entry.machine, entry.row.dtype]
        lines[name].setdefault(float(entry.row.selected_tokens or 0), entry)
    series = [
        Series(name, tuple(_speedup_point(x, points[x]) for x in sorted(points)))
        for name, points in lines.items()
    ]
    row = entries[0].row
    budgets = sorted({x for points in lines.values() for x in points})
    ceiling = Series(
        "ceiling", tuple(Point(x, (row.seq_len or 0) / x) for x in budgets), is_bound=True
    )
    return LineFigure(
        name="speedup",
        title="How much faster is attending fewer tokens?",
        caption=f"Speedup of attending (gather and attention, choosing not counted) over dense, "
        f"{row.workload}, {row.seq_len:,} tokens, {row.num_q_heads} query heads, selector "
        f"{row.selector}. Bars are 95 % intervals over processes; the dotted ceiling is all "
        f"tokens over selected tokens.",
        y_label="speedup over dense",
        unit="x",
        series=(*series[:MOST_SERIES], ceiling),
        log_y=True,
    )


def recall_by_budget(report: Report) -> Figure | None:
    """Recall against budget for each selector, between random and the oracle."""
    entries = [e for e in report.entries if _measured(e, "recall")]
    of_quality = [entry for entry in entries if entry.run.kind == "quality"]
    entries = of_quality or entries
    lines: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        cells = lines[str(entry.row.selector)]
        cells[float(entry.row.selected_tokens or 0)].append(entry.metric("recall") or 0.0)
    if not lines:
        return None
    series = [
        Series(
            name,
            tuple(Point(x, fmean(cells[x])) for x in sorted(cells)),
            is_bound=name in ENDS_OF_SCALE,
        )
        for name, cells in sorted(lines.items(), key=lambda item: -_level(item[1]))
    ]
    workloads = ", ".join(dict.fromkeys(str(entry.row.workload) for entry in entries))
    return LineFigure(
        name="recall",
        title="How much of the attention does each selector keep?",
        caption=f"Recall: the share of the attention mass on the selected tokens, mean over "
        f"{workloads}. Dotted: choosing at random, and the oracle, the best that blocks can do.",
        y_label="attention kept",
        unit="%",
        series=tuple(series),
    )


def step_split(report: Report) -> Figure | None:
    """What a decode step's time is made of, beside dense, for each selector at the headline."""
    entries = [e for e in report.entries if _measured(e, "sparse_selected_ms", "score_ms")]
    tokens = headline_tokens(entries)
    entries = _one_shape([e for e in entries if e.row.selected_tokens == tokens], one_machine=True)
    if not entries:
        return None
    dense = fmean(entry.metric("dense_sdpa_ms") or 0.0 for entry in entries)
    bars: list[tuple[str, tuple[float | None, ...]]] = [("dense", (dense, None, None))]
    for entry in entries[:MOST_SERIES]:
        parts = ("sparse_selected_ms", "score_ms", "update_ms")
        bars.append((str(entry.row.selector), tuple(entry.metric(name) for name in parts)))
    row, name = entries[0].row, report.legend.names[entries[0].machine]
    return BarFigure(
        name="step",
        title="Where does a decode step's time go?",
        caption=f"One step on {name}, {row.workload}, {row.seq_len:,} tokens, {tokens:,} selected: "
        f"attending, choosing the tokens, and keeping the block summaries up to date.",
        x_label="milliseconds a step",
        unit="ms",
        parts=("attend", "choose", "update"),
        bars=tuple(bars),
    )


def bandwidth_share(report: Report) -> Figure | None:
    """How much of each machine's copy bandwidth dense attention reaches."""
    entries = [e for e in report.entries if _measured(e, "copy_share")]
    tokens = headline_tokens(entries)
    if not entries or tokens is None:
        return None
    found = gains(entries, usable(report.entries), tokens)
    names = report.legend.names
    bars: dict[str, tuple[float | None, ...]] = {}
    for entry in found:
        label = f"{names[entry.machine]}, {entry.row.workload}"
        bars.setdefault(label, (entry.metric("copy_share"),))
    return BarFigure(
        name="bandwidth",
        title="Is the dense baseline a fair one?",
        caption="GB/s that dense attention reads, as a share of what a plain copy on the same "
        "machine reads and writes. Near 100 % dense is limited by memory, and reading less can "
        "pay; far below, something else limits it.",
        x_label="share of copy bandwidth",
        unit="%",
        parts=("dense",),
        bars=tuple(bars.items()),
    )


def _measured(entry: Entry, *metrics: str) -> bool:
    return entry.row.status == "ok" and all(entry.metric(name) is not None for name in metrics)


def _one_shape(entries: Sequence[Entry], *, one_machine: bool = False) -> list[Entry]:
    """Entries of one workload and shape: where most machines and budgets meet, longest context.

    With `one_machine` one entry for each selector of one machine; else one selector's.
    """
    shapes: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        shapes[_shape(entry)].append(entry)
    if not shapes:
        return []
    chosen = max(shapes.values(), key=_coverage)
    if one_machine:
        chosen = _most(chosen, lambda entry: (entry.machine, entry.row.dtype))
        return list({entry.row.selector: entry for entry in chosen}.values())
    return _most(chosen, lambda entry: entry.row.selector)


def _shape(entry: Entry) -> tuple[object, ...]:
    row = entry.row
    sizes = (row.seq_len, row.batch, row.num_q_heads, row.num_kv_heads, row.head_dim)
    return (row.workload, row.layer, *sizes, row.block_size, row.attention)


def _coverage(entries: Sequence[Entry]) -> tuple[int, int]:
    """How many machines and budgets the entries cover, then the length of their context."""
    cells = {(entry.machine, entry.row.dtype, entry.row.selected_tokens) for entry in entries}
    return (len(cells), entries[0].row.seq_len or 0)


def _most(entries: Sequence[Entry], key: Callable[[Entry], object]) -> list[Entry]:
    """The entries of the key that most of them have; of equals, the first."""
    counts = Counter(map(key, entries))
    (most, _), *_ = counts.most_common(1)
    return [entry for entry in entries if key(entry) == most]


def _speedup_point(x: float, entry: Entry) -> Point:
    y = entry.metric("speedup") or 0.0
    return Point(x, y, entry.metric("speedup_low"), entry.metric("speedup_high"))


def _level(cells: dict[float, list[float]]) -> float:
    return fmean(value for values in cells.values() for value in values)


FIGURES: tuple[Callable[[Report], Figure | None], ...] = (
    speedup_by_budget,
    recall_by_budget,
    step_split,
    bandwidth_share,
)


def table_of(figure: Figure) -> tuple[list[str], list[list[float | None]], Iterable[str]]:
    """The figure's data: headers, rows of numbers, and each row's label."""
    if isinstance(figure, BarFigure):
        rows = [list(values) for _, values in figure.bars]
        return list(figure.parts), rows, [label for label, _ in figure.bars]
    budgets = sorted({point.x for line in figure.series for point in line.points})
    at = [{point.x: point.y for point in line.points} for line in figure.series]
    rows = [[points.get(x) for points in at] for x in budgets]
    return [line.name for line in figure.series], rows, [f"{x:,.0f}" for x in budgets]
