"""`topokv bench`: sparse against dense decode attention, measured and written as it goes.

Exit codes: 0 measured, 1 a row failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from topokv.bench import GAUSSIAN_SELECTORS, REAL_SELECTORS, Settings
from topokv.core import DTYPE_NAMES, SHARINGS, Progress

if TYPE_CHECKING:
    from topokv.bench.parent import Job, Step
    from topokv.results import Run

RESULTS = Path("results")
_ASKED = Settings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_sizes(parser.add_argument_group("what is measured"))
    _add_choices(parser.add_argument_group("what is compared"))
    _add_timing(parser.add_argument_group("how it is timed"))
    _add_place(parser.add_argument_group("where, and what comes out"))


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv",
        nargs="+",
        default=list(_ASKED.kv),
        metavar="KV",
        help="gaussian (random keys), sample (a small real cache) or capture files; "
        "default: gaussian sample",
    )
    group.add_argument("--layer", nargs="+", type=int, default=[], help="only these of a capture")
    for flag, default, text in (
        ("--seq-len", _ASKED.seq_len, "tokens in the cache of random keys"),
        ("--heads", _ASKED.heads, "query heads"),
        ("--kv-heads", None, "key/value heads; default: as many as query heads"),
        ("--head-dim", _ASKED.head_dim, "size of a head"),
        ("--batch", _ASKED.batch, "requests decoded together"),
    ):
        group.add_argument(flag, type=int, default=default, help=_with_default(text, default))
    group.add_argument(
        "--selected-tokens",
        nargs="+",
        type=int,
        default=list(_ASKED.selected_tokens),
        metavar="TOKENS",
        help="budgets: how many tokens the sparse arm attends; default: 128 256 512 1024",
    )


def _add_choices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--selector",
        nargs="+",
        default=[],
        help=f"default: {' '.join(GAUSSIAN_SELECTORS)} on random keys, "
        f"{' '.join(REAL_SELECTORS)} on a real cache",
    )
    group.add_argument("--sharing", help=f"who shares a schedule: {', '.join(SHARINGS)}")
    group.add_argument(
        "--attention",
        nargs="+",
        default=[],
        help="ways to attend beside gather, the published one, which is always measured: blocks, "
        "runs, csr (on CPUs), flex (compiles a kernel, which takes seconds in every process and, "
        "on a CPU, a C++ compiler)",
    )
    group.add_argument(
        "--dtype", help=f"{', '.join(DTYPE_NAMES)}; default: float32, on GPUs float16"
    )
    for flag, default, text in (
        ("--block-size", _ASKED.block_size, "tokens in a block"),
        ("--sink-blocks", _ASKED.sink_blocks, "first blocks, always attended"),
        ("--local-blocks", _ASKED.local_blocks, "newest blocks, always attended"),
        ("--seed", _ASKED.seed, "seed of random keys, random selection and shuffling"),
    ):
        group.add_argument(flag, type=int, default=default, help=_with_default(text, default))


def _add_timing(group: argparse._ArgumentGroup) -> None:
    for flag, default, text in (
        ("--rounds", _ASKED.rounds, "most rounds in a process"),
        ("--warmup", _ASKED.warmup, "rounds that are not timed"),
        ("--processes", _ASKED.processes, "fresh processes; with 1 no interval is claimed"),
        ("--threads", None, "CPU threads; default: one for each physical core"),
    ):
        group.add_argument(flag, type=int, default=default, help=_with_default(text, default))
    group.add_argument(
        "--max-seconds",
        type=float,
        default=_ASKED.max_seconds,
        help=f"time cap of a row, over all processes; default: {_ASKED.max_seconds:g}",
    )
    group.add_argument(
        "--graphs",
        default=_ASKED.graphs,
        help="time CUDA graphs too: auto (on CUDA, not on ROCm), on, off",
    )


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--device",
        default=_ASKED.device,
        help="auto (a GPU if there is one), cpu, cuda, cuda:1, rocm, …; default: auto",
    )
    group.add_argument(
        "--require-device", action="store_true", help="an error, not the CPU, where no GPU is"
    )
    group.add_argument(
        "--output", type=Path, metavar="FILE", help="default: results/bench-<backend>.json"
    )
    group.add_argument("--wide", action="store_true", help="print every column")


def _with_default(text: str, default: int | None) -> str:
    return text if default is None else f"{text}; default: {default}"


def settings_from(args: argparse.Namespace) -> Settings:
    """What the command line asks for."""
    return Settings(
        kv=tuple(args.kv),
        layers=tuple(args.layer),
        selected_tokens=tuple(args.selected_tokens),
        selectors=tuple(args.selector),
        attention=tuple(args.attention),
        **{name: getattr(args, name) for name in _SAME_NAMES},
    )


_SAME_NAMES = (
    "seq_len",
    "heads",
    "kv_heads",
    "head_dim",
    "batch",
    "block_size",
    "sink_blocks",
    "local_blocks",
    "dtype",
    "sharing",
    "rounds",
    "warmup",
    "processes",
    "max_seconds",
    "device",
    "require_device",
    "graphs",
    "seed",
    "threads",
)


def run(args: argparse.Namespace) -> int:
    from topokv.bench.parent import Job, measure

    command = ("topokv", *_without_paths(sys.argv[1:]))
    with Progress("bench") as progress:
        job = Job(
            settings_from(args),
            args.output,
            RESULTS,
            command,
            notify=lambda step: progress.show(_words(step)),
            warn=lambda line: print(f"topokv bench: {line}", file=sys.stderr),
        )
        try:
            finished = measure(job)
        except KeyboardInterrupt:
            _print_table(job, wide=args.wide)
            raise
    _print_table(job, wide=args.wide)
    return _exit_code(finished)


def _exit_code(finished: Run) -> int:
    """1 where a row failed, or none was measured."""
    statuses = {row.status for row in finished.rows}
    return int("failed" in statuses or "ok" not in statuses)


def _without_paths(words: list[str]) -> list[str]:
    """The command line as it goes into the file: absolute paths name a machine's folders."""
    return [Path(word).name if Path(word).is_absolute() else word for word in words]


def _print_table(job: Job, *, wide: bool) -> None:
    """The file's table; nothing where the run had not come to writing one."""
    from topokv.report import Request, build, format_named

    if job.plan:
        report = build(Request(paths=(job.path,), wide=wide))
        print(format_named("text").render(report))
        print(f"written to {job.path}")


def _words(step: Step) -> str:
    row = step.row
    layer = "" if row.layer is None else f" layer {row.layer}"
    return (
        f"process {step.process} of {step.num_processes}, cell {step.cell} of {step.num_cells}: "
        f"{row.workload}{layer}, {row.selected_tokens} of {row.seq_len} tokens"
    )
