"""Two claims of docs/reliability.md, tried out: killed runs lose nothing, long runs leak nothing.

python -m benchmarks.reliability kills [--times 30] [--seed 0]
python -m benchmarks.reliability endurance [--rows 200]

Needs psutil, and a system with SIGKILL. Exits 1 where a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from topokv.bench import Settings
from topokv.bench.parent import Job, Step, measure
from topokv.results import ResultFileError, read

ROOT = Path(__file__).resolve().parent.parent
TOPOKV = (sys.executable, "-m", "topokv")
# Small enough to end within a minute: 8 rows in 4 cells, by 3 processes.
SHORT_RUN = ["bench", "--kv", "gaussian", "--seq-len", "256", "--block-size", "8", "--rounds", "5"]
SHORT_RUN += ["--max-seconds", "2", "--processes", "3"]
SHORT_RUN += ["--selected-tokens", "16", "32", "64", "128", "--output"]


def values_in(path: Path) -> int:
    """How many values (a row's, by one process) the results file holds; 0 where there is none."""
    try:
        rows = read(path).rows
    except ResultFileError:
        if path.exists():
            raise
        return 0
    return sum(int(row.metrics.get("num_processes") or 0) for row in rows)


def kill_after(seconds: float, folder: Path) -> dict[str, object]:
    """One run, killed after that time: what the file held just before and what it holds after."""
    output = folder / "bench.json"
    with subprocess.Popen([*TOPOKV, *SHORT_RUN, str(output)], cwd=ROOT, **quiet()) as run:
        seen, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline and run.poll() is None:
            seen = max(seen, values_in(output))
            time.sleep(0.02)
        ended = run.poll() is not None
        workers = [] if ended else psutil.Process(run.pid).children()
        run.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    report = [*TOPOKV, "report", str(output), "--format", "json"]
    code = subprocess.run(report, cwd=ROOT, **quiet()).returncode if output.exists() else None
    kept = values_in(output)
    return {
        "seconds": round(seconds, 2),
        "ended_before": ended,
        "values_seen": seen,
        "values_kept": kept,
        "report_exit": code,
        "workers_left": len(alive),
        "holds": kept >= seen and not alive and (code == 0 or not output.exists()),
    }


def quiet() -> dict[str, int]:
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def kills(times: int, seed: int) -> dict[str, object]:
    """Runs killed at moments drawn evenly from the time that a whole run takes."""
    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run([*TOPOKV, *SHORT_RUN, f"{folder}/whole.json"], cwd=ROOT, **quiet())
        whole = time.monotonic() - started
    outcomes = []
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(kill_after(drawn.uniform(0, whole), Path(folder)))
        print(f"{number + 1} of {times}: {outcomes[-1]}", file=sys.stderr)
    return {
        "times": times,
        "whole_run_seconds": round(whole, 1),
        "killed_with_values": sum(bool(one["values_kept"]) for one in outcomes),
        "holds": all(one["holds"] for one in outcomes),
        "outcomes": outcomes,
    }


@dataclass
class Watch:
    """Memory of the parent and of its worker, by the number of rows done."""

    rows_in_cell: int
    parent: dict[int, int] = field(default_factory=dict)
    worker: dict[int, int] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        own, rows = psutil.Process(), (step.cell - 1) * self.rows_in_cell
        self.parent[rows], self.handles[rows] = own.memory_info().rss, own.num_fds()
        self.worker[rows] = sum(child.memory_info().rss for child in own.children())


def endurance(rows: int) -> dict[str, object]:
    """One run of that many rows in this process, its memory watched from 20 rows on."""
    selectors = ("drift", "witness", "mean-pool", "quest", "streaming")
    cells = rows // len(selectors) + 1
    settings = Settings(
        kv=("gaussian",),
        seq_len=4096,
        block_size=16,
        selected_tokens=tuple(range(32, 32 + 8 * cells, 8)),
        selectors=selectors,
        processes=1,
        rounds=20,
        max_seconds=5.0,
    )
    watch = Watch(len(selectors))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(settings, Path(folder) / "bench.json", Path(folder), (), watch, warn=print)
        measure(job)
        left = [path.name for path in Path(folder).iterdir() if path.name != "bench.json"]
    last = max(watch.parent)
    growth = {
        name: (sizes[last] - sizes[20]) / 1e6
        for name, sizes in (("parent", watch.parent), ("worker", watch.worker))
    }
    processes = len(psutil.Process().children(recursive=True))
    handles = watch.handles[last] - watch.handles[20]
    return {
        "rows": last,
        "growth_mb": {name: round(size, 1) for name, size in growth.items()},
        "more_handles": handles,
        "processes_left": processes,
        "files_left": left,
        "holds": max(growth.values()) < 50 and handles <= 0 and not processes and not left,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trial", choices=("kills", "endurance"))
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200)
    args = parser.parse_args()
    found = kills(args.times, args.seed) if args.trial == "kills" else endurance(args.rows)
    print(json.dumps(found, indent=1))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
