"""Figures set with matplotlib: inline SVG that takes its colours from the page, or files.

Nothing global is changed, no window system is needed, and one figure drawn twice is one text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topokv.report.numbers import shown
from topokv.report.plots.figures import BarFigure, Figure, LineFigure, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Told apart by people who do not see all colours (Okabe and Ito), darkened to 3:1 on white.
SERIES_COLOURS = (
    *("#0072b2", "#b35900", "#00795c", "#9a4f7f"),
    *("#6b6b00", "#3a6fb0", "#a03030", "#5a5a5a"),
    *("#7a3db8", "#008080"),
)
FEW_LINES = 3
_MARKERS = "osD^vPX*<>"
_INCHES = (4.6, 3.3)
_FONT = "DejaVu Sans"


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a drawing. On a page they stand for CSS variables, put in afterwards."""

    ink: str = "#24292f"
    grid: str = "#d0d7de"
    background: str = "#ffffff"


def inline_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element: no size of its own, colours from CSS variables."""
    out = io.StringIO()
    _save(figure, out, "svg", transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", text, count=1)
    text = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{figure.name}-", text)
    text = text.replace(f"'{_FONT}'", "system-ui, sans-serif")
    for colour, variable in _variables().items():
        text = text.replace(colour, f"var({variable})")
    return re.sub(r"\s*\n\s*", " ", text)


def write_files(figure: Figure, folder: Path) -> list[Path]:
    """The figure as `NAME.svg` and `NAME.png` in `folder`; the paths."""
    paths = [folder / f"{figure.name}.{suffix}" for suffix in ("svg", "png")]
    for path in paths:
        out = io.BytesIO()
        _save(figure, out, path.suffix[1:], transparent=False)
        path.write_bytes(out.getvalue())
    return paths


def _variables() -> dict[str, str]:
    palette = Palette()
    series = {colour: f"--series-{i}" for i, colour in enumerate(SERIES_COLOURS)}
    return series | {palette.ink: "--ink", palette.grid: "--rule"}


def _save(figure: Figure, out: io.StringIO | io.BytesIO, form: str, *, transparent: bool) -> None:
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
        "font.family": _FONT,
    }
    with mpl.rc_context(settings):
        canvas = _drawn(figure, Palette())
        metadata = {"Date": None} if form == "svg" else None
        canvas.savefig(out, format=form, dpi=160, transparent=transparent, metadata=metadata)


def _drawn(figure: Figure, palette: Palette) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=_INCHES, layout="constrained")
    axes = canvas.add_subplot()
    if isinstance(figure, LineFigure):
        _lines(axes, figure, palette)
    else:
        _bars(axes, figure, palette)
    _quiet(axes, palette)
    return canvas


def _lines(axes: Axes, figure: LineFigure, palette: Palette) -> None:
    axes.grid(color=palette.grid, linewidth=0.7)
    budgets = sorted({point.x for line in figure.series for point in line.points})
    axes.set_xscale("log", base=2)
    if figure.log_y:
        axes.set_yscale("log", base=2)
    for i, line in enumerate(line for line in figure.series if not line.is_bound):
        _line(axes, line, SERIES_COLOURS[i % len(SERIES_COLOURS)], _MARKERS[i % len(_MARKERS)])
    for line in (line for line in figure.series if line.is_bound):
        _bound(axes, line, palette, is_lowest=_is_lowest(line, figure.series))
    axes.set_xticks(budgets, [f"{x:,.0f}" for x in budgets])
    axes.minorticks_off()
    if figure.log_y:
        _limit_to_points(axes, figure.series)
    axes.yaxis.set_major_formatter(lambda value, _: _tick(value, figure.unit))
    axes.set_xlabel("selected tokens")
    axes.set_ylabel(figure.y_label)
    _name_lines(axes, palette)


def _name_lines(axes: Axes, palette: Palette) -> None:
    """The lines' names: inside where they are few, below the picture where they would cover it."""
    handles, names = axes.get_legend_handles_labels()
    canvas = axes.get_figure()
    if len(names) > FEW_LINES and canvas is not None:
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3}
        canvas.legend(handles, names, frameon=False, fontsize=9, labelcolor=palette.ink, **where)
    else:
        axes.legend(frameon=False, fontsize=10, labelcolor=palette.ink)


def _line(axes: Axes, line: Series, colour: str, marker: str) -> None:
    xs, ys = [p.x for p in line.points], [p.y for p in line.points]
    axes.plot(xs, ys, color=colour, marker=marker, markersize=5, linewidth=1.6, label=line.name)
    sure = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
    for x, low, high in sure:
        axes.plot([x, x], [low, high], color=colour, linewidth=1.2, marker="_", markersize=8)


def _bound(axes: Axes, line: Series, palette: Palette, *, is_lowest: bool) -> None:
    """A dotted line with its name where the line leaves room for it."""
    xs, ys = [p.x for p in line.points], [p.y for p in line.points]
    axes.plot(xs, ys, color=palette.ink, linestyle=":", linewidth=1.2)
    falls = ys[-1] < ys[0]
    axes.annotate(
        line.name,
        (xs[0], ys[0]) if falls else (xs[-1], ys[-1]),
        (10, 2) if falls else (0, -18 if is_lowest else 6),
        textcoords="offset points",
        ha="left" if falls else "right",
        color=palette.ink,
        fontsize=10,
    )


def _limit_to_points(axes: Axes, series: Sequence[Series]) -> None:
    """Room for all points; an interval that says nothing may leave the picture."""
    values = [point.y for line in series for point in line.points if point.y > 0]
    axes.set_ylim(min(values) / 1.5, max(values) * 1.5)


def _is_lowest(line: Series, series: Sequence[Series]) -> bool:
    return all(line.points[-1].y <= other.points[-1].y for other in series)


def _bars(axes: Axes, figure: BarFigure, palette: Palette) -> None:
    axes.grid(color=palette.grid, linewidth=0.7, axis="x")
    labels = [label for label, _ in figure.bars]
    left = [0.0] * len(labels)
    for i, part in enumerate(figure.parts):
        widths = [values[i] or 0.0 for _, values in figure.bars]
        axes.barh(labels, widths, left=left, color=SERIES_COLOURS[i], label=part, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for label, end in zip(labels, left, strict=True):
        axes.annotate(
            _tick(end, figure.unit),
            (end, label),
            (4, 0),
            textcoords="offset points",
            va="center",
            color=palette.ink,
            fontsize=10,
        )
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: _tick(value, figure.unit))
    axes.set_xlabel(figure.x_label)
    if len(figure.parts) > 1:
        axes.legend(frameon=False, fontsize=10, labelcolor=palette.ink)


def _tick(value: float, unit: str) -> str:
    if unit in ("x", "ms"):
        return f"{value:.3g}{unit.removesuffix('ms')}"
    return f"{100 * value:.0f} %" if unit == "%" else shown(value, unit)


def _quiet(axes: Axes, palette: Palette) -> None:
    """No box, no ticks, text in the page's ink."""
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=palette.ink, labelsize=10, length=0)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(palette.ink)
        text.set_fontsize(10)
