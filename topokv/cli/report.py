"""`topokv report`: result files in, one comparison out.

Exit codes: 0 fine, 1 something failed (the report is written all the same), 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from topokv.core import write_text

if TYPE_CHECKING:
    from topokv.report import Report, Request

RESULTS = Path("results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="result files and folders of them (default: results)",
    )
    _add_outputs(parser)
    _add_choices(parser)
    _add_judgements(parser)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    from topokv.report import format_names

    parser.add_argument(
        "--format",
        choices=format_names(),
        help="write this format alone, to standard output or --output; without it the text is "
        "printed, and comparison.md, .csv and .json and report.html are written",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="the file to write with --format; the folder to write into without it "
        "(default: results)",
    )
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="write each picture there as SVG and PNG"
    )
    parser.add_argument(
        "--github-summary",
        action="store_true",
        help="add the Markdown to the summary of this GitHub Actions step",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--columns", default="", metavar="NAMES", help="only these columns, separated by commas"
    )
    parser.add_argument(
        "--sort", default="", metavar="NAMES", help="sort by these columns; -NAME: largest first"
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="keep rows for which this holds, such as selector=witness or speedup>=2 (repeatable)",
    )
    parser.add_argument("--wide", action="store_true", help="every column that some row fills")
    parser.add_argument(
        "--long", action="store_true", help="a table for each machine, not side by side"
    )


def _add_judgements(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="an earlier run of the same machine: adds the change of each row and a verdict",
    )
    parser.add_argument(
        "--fail-above",
        type=float,
        default=5.0,
        metavar="PCT",
        help="with --baseline, exit 1 where a speedup is surely lower by more than this "
        "(default: 5)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 if any file could not be read"
    )


def run(args: argparse.Namespace) -> int:
    from topokv.report import append_summary, build, format_named, need, summary_file, write_plots

    if args.github_summary:
        # A word that can't be obeyed is refused before anything is written.
        summary_file()
    if not 0 <= args.fail_above < 100:
        raise ValueError(f"fail_above must be 0 or more and below 100, got {args.fail_above:g}")
    if args.plots:
        need("matplotlib")
    report = build(_request(args))
    for line in report.refused:
        print(f"topokv report: {line}", file=sys.stderr)
    if args.format:
        _put(format_named(args.format).render(report), args.output)
    else:
        _write_all(report, args.output or RESULTS)
    if args.plots:
        write_plots(report, args.plots)
    if args.github_summary:
        append_summary(report)
    lost = report.lost(args.fail_above / 100)
    if lost:
        print(f"topokv report: {lost} rows are slower than the baseline", file=sys.stderr)
    return int(report.failed or lost > 0 or (args.strict and bool(report.refused)))


def _request(args: argparse.Namespace) -> Request:
    from topokv.report import Request

    return Request(
        paths=tuple(args.paths) or (RESULTS,),
        baseline=args.baseline,
        columns=_words(args.columns),
        where=tuple(args.where),
        sort=_words(args.sort),
        wide=args.wide,
        long=args.long,
    )


def _write_all(report: Report, folder: Path) -> None:
    """Print the text; write the other formats to `folder`, all rendered before one is written."""
    from topokv.report import FORMATS, MissingExtraError, format_named

    texts: dict[Path, str] = {}
    for form in FORMATS:
        try:
            if form.file:
                texts[folder / form.file] = form.render(report)
        except MissingExtraError as error:
            print(f"topokv report: {form.file} is left out: {error}", file=sys.stderr)
    shown = format_named("text").render(report)
    folder.mkdir(parents=True, exist_ok=True)
    # Files first: who reads the text may stop reading it.
    for path, text in texts.items():
        _put(text, path)
    _put(shown, None)


def _put(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
    elif path.exists() and not path.is_file():
        # A pipe or a device is written to, not replaced.
        path.write_text(text, encoding="utf-8")
    else:
        write_text(path, text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
