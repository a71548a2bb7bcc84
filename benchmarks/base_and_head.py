"""Two versions of this project measured on one machine in turns, and the later judged.

    python -m benchmarks.base_and_head BASE HEAD [--processes 5] [--output FOLDER] -- BENCH OPTIONS

BASE and HEAD are folders with a checkout each. Processes alternate between them, so that whatever
else the machine does meets both. Leaves base.json and head.json in the output folder, each as if
`topokv bench` had run all processes of that version, for `topokv report head.json --baseline
base.json` and `topokv compare base.json head.json`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from topokv.results import Row, Run, read
from topokv.results.codec import write
from topokv.results.comparison import speedups_of
from topokv.stats import median, over_processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results"), metavar="FOLDER")
    own, options = split(sys.argv[1:])
    args = parser.parse_args(own)
    trees = {"base": args.base, "head": args.head}
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        runs = measured(trees, args.processes, options, Path(name))
    for version, found in runs.items():
        write(args.output / f"{version}.json", merged(found))


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """This script's own words, and those after `--`, which are the benchmark's."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def measured(
    trees: dict[str, Path], processes: int, options: Sequence[str], folder: Path
) -> dict[str, list[Run]]:
    """One run of each version for each process, in an order that is shuffled anew each time."""
    runs: dict[str, list[Run]] = {version: [] for version in trees}
    shuffled = random.Random(0)
    for process in range(processes):
        for version in shuffled.sample(list(trees), len(trees)):
            output = folder / f"{version}-{process}.json"
            bench(trees[version], output, options)
            runs[version].append(read(output))
    return runs


def bench(tree: Path, output: Path, options: Sequence[str]) -> None:
    """Run one process of the version in the folder `tree`."""
    words = ("bench", *options, "--processes", "1", "--output", str(output))
    # The folder itself, or an installed topokv would be measured twice.
    environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
    command = [sys.executable, "-m", "topokv", *words]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    if not output.exists():
        raise SystemExit(f"topokv bench in {tree} left no results (exit code {done.returncode})")


def merged(runs: Sequence[Run]) -> Run:
    """One run with the samples of all, as of one process each.

    A row that was not ok in some run stays as it was there. Metrics are medians over the runs.
    """
    later = [{row.key: row for row in run.rows} for run in runs[1:]]
    rows = [_merged_row([row, *(rows[row.key] for rows in later)]) for row in runs[0].rows]
    return replace(runs[0], rows=tuple(rows))


def _merged_row(rows: Sequence[Row]) -> Row:
    broken = next((row for row in rows if row.status != "ok"), None)
    if broken is not None:
        return broken
    samples = {
        name: tuple(process for row in rows for process in row.samples.get(name, ()))
        for name in rows[0].samples
    }
    row = replace(rows[0], samples=samples)
    return replace(row, metrics=_medians(rows) | _speedup(row))


def _medians(rows: Sequence[Row]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in rows[0].metrics:
        known = [value for row in rows if (value := row.metrics.get(name)) is not None]
        found[name] = median(known) if known else None
    return found | {"num_processes": len(rows)}


def _speedup(row: Row) -> dict[str, float | None]:
    values = speedups_of(row)
    if not values:
        return {}
    interval = over_processes(values)
    return {
        "speedup": interval.center,
        "speedup_low": interval.low,
        "speedup_high": interval.high,
    }


if __name__ == "__main__":
    main()
