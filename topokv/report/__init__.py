"""Result files in, comparison out; nothing here imports torch.

`sources` reads files, `columns` says what a table can show, `table` arranges it, and `formats`
holds one file for each way to write it down.
"""

from topokv.report.extra import MissingExtraError, need
from topokv.report.formats import FORMATS, format_named, format_names
from topokv.report.github import append_summary, summary_file
from topokv.report.plots import write_plots
from topokv.report.quality_table import FULL_WIDTH, quality_table
from topokv.report.report import Report, Request, build

__all__ = [
    "FORMATS",
    "FULL_WIDTH",
    "MissingExtraError",
    "Report",
    "Request",
    "append_summary",
    "build",
    "format_named",
    "format_names",
    "need",
    "quality_table",
    "summary_file",
    "write_plots",
]
