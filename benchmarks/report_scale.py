"""What a large report costs: 3 machines x 3 backends x 500 rows, by format, each in a new process.

    python -m benchmarks.report_scale

Prints seconds (wall and processor) and peak memory of `topokv report --format F`, interpreter
start included, and the size of what it wrote. docs/report.md carries the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from topokv.report import format_names
from topokv.results import Row, Run
from topokv.results.codec import write
from topokv.results.record import Samples

SELECTORS = ("drift", "streaming", "random", "mean-pool", "quest", "witness", "oracle")
SEQ_LENS = tuple(1024 * 2**i for i in range(6))
BUDGETS = (128, 256, 512, 1024)
TIMES = ("dense_sdpa_ms", "dense_again_ms", "sparse_selected_ms", "score_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500, help="rows of each file")
    parser.add_argument("--rounds", type=int, default=50, help="samples of each process and time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for backend in ("cpu", "cuda", "rocm"):
            for machine in range(3):
                path = folder / f"bench-{backend}-{machine}.json"
                write(path, a_run(backend, machine, args.rows, args.rounds))
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"9 files, {9 * args.rows} rows, {size / 2**20:.0f} MiB")
        lines = [measured(form, folder) for form in format_names()]
    headers = ("format", "seconds", "processor seconds", "peak MiB", "output MiB")
    print(tabulate(lines, headers, floatfmt=".2f"))


def a_run(backend: str, machine: int, num_rows: int, rounds: int) -> Run:
    noise = random.Random(f"{backend}{machine}")
    cells = [(s, n, b) for n in SEQ_LENS for b in BUDGETS for s in SELECTORS]
    rows = [a_row(*cells[i % len(cells)], i // len(cells), noise, rounds) for i in range(num_rows)]
    environment = {
        "device": f"Some {backend} device {machine}",
        "torch": "2.13.0",
        "torch_build": backend,
        "fingerprint": f"{backend}{machine:08}",
    }
    created = "2026-12-01T00:00:00+00:00"
    fields = {"environment": environment, "rows": tuple(rows)}
    return Run(kind="bench", backend=backend, created=created, **fields)


def a_row(
    selector: str, seq_len: int, budget: int, layer: int, noise: random.Random, rounds: int
) -> Row:
    dense = seq_len / 4000 * noise.uniform(0.9, 1.1)
    sparse = dense * 2 * budget / seq_len + 0.02
    recall = noise.uniform(0.4, 1)
    metrics = {
        "dense_sdpa_ms": dense,
        "sparse_selected_ms": sparse,
        "speedup": dense / sparse,
        "speedup_low": dense / sparse * 0.97,
        "speedup_high": dense / sparse * 1.03,
        "step_speedup": dense / (sparse + 0.1),
        "recall": recall,
        "gap_closed": recall,
        "gap_closed_low": recall - 0.02,
        "gap_closed_high": recall + 0.02,
        "copy_share": noise.uniform(0.5, 1),
        **{f"{name}_ms": noise.uniform(0.1, 3) for name in ("summary", "update", "score", "step")},
        **{f"sparse_p{n}_ms": noise.uniform(0.1, 3) for n in (50, 90, 99)},
        **{f"{name}_gbps": noise.uniform(10, 400) for name in ("effective", "copy", "read")},
        "output_error": 1 - recall,
        "aa_ratio": noise.uniform(0.98, 1.02),
        "num_processes": 5,
    }
    row = Row(
        workload="capture",
        layer=layer,
        dtype="float32",
        batch=1,
        seq_len=seq_len,
        num_q_heads=16,
        num_kv_heads=16,
        head_dim=64,
        selected_tokens=budget,
        block_size=64,
        selector=selector,
        attention="gather",
        dense_backend="flash",
        sparse_backend="flash",
        metrics=metrics,
    )
    return replace(row, samples={name: some_samples(noise, rounds) for name in TIMES})


def some_samples(noise: random.Random, rounds: int) -> Samples:
    return tuple(tuple(round(noise.random(), 6) for _ in range(rounds)) for _ in range(5))


def measured(form: str, folder: Path) -> tuple[str, float, float, float, float]:
    """Format, wall seconds, processor seconds, peak MiB and MiB written, of one new process."""
    output = folder.with_suffix(".out")
    words = ("report", str(folder), "--format", form, "--output", str(output))
    start = time.perf_counter()
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "topokv", *words])
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"topokv {' '.join(words)} failed")
    written = output.stat().st_size
    output.unlink()
    peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return form, seconds, usage.ru_utime + usage.ru_stime, peak, written / 2**20


if __name__ == "__main__":
    main()
