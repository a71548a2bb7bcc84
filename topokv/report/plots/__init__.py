"""Pictures of a report: `figures` picks the data, `draw` sets it with matplotlib."""

from __future__ import annotations

from pathlib import Path

from topokv.report.extra import need
from topokv.report.report import Report


def write_plots(report: Report, folder: Path) -> list[Path]:
    """The paths of the report's pictures, each written to `folder` as SVG and PNG."""
    need("matplotlib")
    from topokv.report.plots.draw import write_files
    from topokv.report.plots.figures import figures

    folder.mkdir(parents=True, exist_ok=True)
    return [path for figure in figures(report) for path in write_files(figure, folder)]
