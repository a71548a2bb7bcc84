"""Whether the numbers can be trusted: the claims of docs/measuring.md, measured.

    python benchmarks/trust.py [--quick] [--output FOLDER] [PART ...]

Parts: `aa` (20 runs of the same code: A/A ratios, and verdicts of each run against the next),
`quiet` and `load` (5 complete runs of the published grid, alone and beside a bursty neighbour on
one core, with the loop as it was published beside each), `delay` (a sparse arm slowed by 3 and by
10 %).
What is in FOLDER already is not measured again, so an interrupted call goes on where it stopped.
The summary of all parts that are there is printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Process
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from topokv.bench import Settings  # noqa: E402
from topokv.bench.parent import Job, measure  # noqa: E402
from topokv.results import (  # noqa: E402
    Run,
    compare,
    read,
)
from topokv.stats import relative_spread  # noqa: E402

PARTS = ("aa", "quiet", "load", "delay")
DELAYS = (0.0, 0.03, 0.1)


@dataclass(frozen=True)
class Size:
    """How much is measured: --quick only shows that the script works."""

    aa_runs: int = 20
    spread_runs: int = 5
    seq_len: int = 16384
    processes: int = 5
    grid: tuple[int, ...] = (128, 256, 512, 1024)
    max_seconds: float = 10.0

    def settings(self, tokens: tuple[int, ...]) -> Settings:
        return Settings(
            kv=("gaussian",),
            seq_len=self.seq_len,
            selected_tokens=tokens,
            selectors=("drift",),
            attention=("gather",),
            processes=self.processes,
            max_seconds=self.max_seconds,
            device="cpu",
        )


QUICK = Size(aa_runs=2, spread_runs=2, seq_len=2048, processes=2, max_seconds=1.0)


def run_bench(path: Path, settings: Settings, worker: Sequence[str] | None = None) -> Run:
    """The run whose results are at `path`, measured now unless it is there and finished."""
    if path.exists() and all(row.status == "ok" for row in read(path).rows):
        return read(path)
    print(f"measuring {path.stem}", file=sys.stderr, flush=True)
    quiet = {"notify": lambda step: None, "warn": lambda line: None}
    return measure(Job(settings, path, path.parent, (), worker=worker, **quiet))


def run_naive(path: Path, size: Size) -> dict[str, float]:
    """Speedups by budget of one warm loop for each arm, in a fresh process."""
    if not path.exists():
        words = [str(size.seq_len), *map(str, size.grid)]
        script = ROOT / "benchmarks/naive_loop.py"
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, check=True
        )
        path.write_text(done.stdout)
    found: dict[str, float] = json.loads(path.read_text())
    return found


def part_aa(folder: Path, size: Size) -> None:
    for number in range(size.aa_runs):
        run_bench(folder / f"aa-{number:02}.json", size.settings(size.grid[-1:]))


def part_quiet(folder: Path, size: Size) -> None:
    for number in range(size.spread_runs):
        run_bench(folder / f"quiet-{number}.json", size.settings(size.grid))
        run_naive(folder / f"quiet-naive-{number}.txt", size)


def part_load(folder: Path, size: Size) -> None:
    with bursty_neighbour():
        for number in range(size.spread_runs):
            run_bench(folder / f"load-{number}.json", size.settings(size.grid))
            run_naive(folder / f"load-naive-{number}.txt", size)


def part_delay(folder: Path, size: Size) -> None:
    script = ROOT / "benchmarks/delayed_worker.py"
    for delay in DELAYS:
        worker = [sys.executable, str(script), str(delay)]
        path = folder / f"delay-{round(100 * delay):02}.json"
        run_bench(path, size.settings(size.grid[-1:]), worker)


@contextmanager
def bursty_neighbour() -> Iterator[None]:
    """A process that keeps one core busy in bursts of 50 to 500 ms, half of the time."""
    neighbour = Process(target=_burn, daemon=True)
    neighbour.start()
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.join()


def _burn() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    chance = random.Random(0)
    while True:
        until = time.monotonic() + chance.uniform(0.05, 0.5)
        while time.monotonic() < until:
            sum(range(1000))
        time.sleep(chance.uniform(0.05, 0.5))


def verdicts(runs: Sequence[Run]) -> Counter[str | None]:
    """How often each verdict falls, of every run against the next one (the last: the first)."""
    pairs = zip(runs, [*runs[1:], *runs[:1]], strict=True)
    return Counter(row.name for pair in pairs for row in compare(*pair).compared)


def summary_aa(folder: Path) -> list[str]:
    runs = [read(path) for path in sorted(folder.glob("aa-*.json"))]
    ratios = [float(row.metrics["aa_ratio"] or 0) for run in runs for row in run.rows]
    if not ratios:
        return []
    within = sum(abs(ratio - 1) <= 0.02 for ratio in ratios)
    counts = ", ".join(f"{count} {name}" for name, count in verdicts(runs).items())
    return [
        f"A/A: {within} of {len(ratios)} runs within 1 ± 0.02 "
        f"(from {min(ratios):.4f} to {max(ratios):.4f})",
        f"each run against the next: {counts}",
    ]


def summary_spread(folder: Path, name: str) -> list[str]:
    runs = [read(path) for path in sorted(folder.glob(f"{name}-?.json"))]
    naive = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-naive-?.txt"))]
    if not runs or not naive:
        return []
    lines = [
        "",
        f"{name}, {len(runs)} complete runs",
        "",
        "| tokens | paired, cold: speedup | spread | naive loop: speedup | spread |",
        "| ---: | --- | ---: | --- | ---: |",
    ]
    for place, row in enumerate(runs[0].rows):
        paired = [float(run.rows[place].metrics["speedup"] or 0) for run in runs]
        looped = [found[str(row.selected_tokens)] for found in naive]
        lines.append(f"| {row.selected_tokens} | {_range(paired)} | {_range(looped)} |")
    return lines


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} … {max(values):.2f} | {relative_spread(values):.1%}"


def summary_delay(folder: Path) -> list[str]:
    runs = [read(path) for path in sorted(folder.glob("delay-*.json"))]
    if len(runs) != len(DELAYS):
        return []
    lines = [""]
    for delay, run in zip(DELAYS[1:], runs[1:], strict=True):
        for row in compare(runs[0], run).compared:
            if row.verdict is not None:
                low, high = (f"{bound or 0:.3f}" for bound in (row.verdict.low, row.verdict.high))
                change = f"{row.verdict.ratio:.3f} ({low} … {high})"
                lines.append(f"sparse slowed by {delay:.0%}: {row.name}, speedup times {change}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, default=ROOT / "results/trust")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that the script works")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {min(unknown)!r}; expected one of {', '.join(PARTS)}")
    args.output.mkdir(parents=True, exist_ok=True)
    measured = {"aa": part_aa, "quiet": part_quiet, "load": part_load, "delay": part_delay}
    for name in args.parts or PARTS:
        measured[name](args.output, QUICK if args.quick else Size())
    lines = summary_aa(args.output)
    for name in ("quiet", "load"):
        lines += summary_spread(args.output, name)
    print("\n".join([*lines, *summary_delay(args.output)]))


if __name__ == "__main__":
    main()
