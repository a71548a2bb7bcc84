"""Measures what docs/performance.md claims: what selection costs beside what it saves, on a CPU.

    python benchmarks/speed.py                       # all, under five minutes
    python benchmarks/speed.py --only update rows    # some, printed only

Each section runs in fresh processes, five unless told, since what a process is given of caches and
memory moves a ratio by more than its rounds do: the figures are medians over them, the range is of
the cold ones. Within a process every ratio is taken between arms of the same shuffled rounds;
`cold` calls follow a flush of the caches, `warm` ones repeat the call at once. All of it together
writes benchmarks/results/speed.json and the table in docs/performance.md, unless others used more
than a tenth of the processors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from speed_sections import ENVIRONMENT, ONCE, SECTIONS, Claim

from topokv.machine import cache_bytes, describe
from topokv.results.codec import write_json
from topokv.stats import median
from topokv.timing import CpuClock, CpuTimes, cpu_flush_bytes, foreign_load

RESULT = Path(__file__).parent / "results" / "speed.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
HEAD = (
    "| what | setting | target | cold | range | warm | |\n"
    "| --- | --- | --- | ---: | ---: | ---: | --- |"
)
PROCESSES = 5

# More than this used by others, and ratios between arms of two threads are theirs, not ours.
QUIET = 0.1


@dataclass(frozen=True, slots=True)
class Found:
    """A claim by the medians of all processes, and the range of its cold figures."""

    claim: Claim
    cold: Sequence[float]

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> Found:
        """What several processes found of one claim."""
        cold = [claim.cold for claim in claims if claim.cold is not None]
        warm = [claim.warm for claim in claims if claim.warm is not None]
        whole = replace(
            claims[0], cold=median(cold) if cold else None, warm=median(warm) if warm else None
        )
        return cls(whole, cold)


def main() -> None:
    options = _options()
    if options.section:
        _measure(options.section, options.threads)
        return
    before = CpuTimes.now()
    found = []
    for name in options.only or SECTIONS:
        for claim in _in_processes(name, options.threads, options.processes):
            found.append(claim)
            print(_line(claim), flush=True)
    load = foreign_load(before, CpuTimes.now())
    print(f"processors used by others: {'unknown' if load is None else f'{load:.0%}'}")
    if not options.only and (load or 0) <= QUIET:
        _write(found, options, load)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measure what docs/performance.md claims")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections; default: all")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads; default: 2")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, help=f"of each section; default: {PROCESSES}"
    )
    parser.add_argument("--section", choices=SECTIONS, help="one, in this process, as JSON lines")
    return parser.parse_args()


def _measure(section: str, threads: int) -> None:
    """Print each claim of a section as a line of JSON."""
    torch.set_num_threads(threads)
    clock = CpuClock(cpu_flush_bytes(cache_bytes(2), cache_bytes(3)))
    with torch.inference_mode():
        for claim in SECTIONS[section](clock):
            print(json.dumps(asdict(claim)), flush=True)


def _in_processes(section: str, threads: int, processes: int) -> list[Found]:
    command = [sys.executable, __file__, "--section", section, "--threads", str(threads)]
    environment = os.environ | ENVIRONMENT.get(section, {})
    by_key: dict[tuple[str, str], list[Claim]] = {}
    for _ in range(1 if section in ONCE else processes):
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        for line in done.stdout.splitlines():
            claim = Claim(**json.loads(line))
            by_key.setdefault(claim.key, []).append(claim)
    return [Found.of(claims) for claims in by_key.values()]


def _line(found: Found) -> str:
    claim = found.claim
    cold, warm = (
        "" if value is None else f"{value:.3g} {claim.unit}" for value in (claim.cold, claim.warm)
    )
    spread = f"{min(found.cold):.3g}–{max(found.cold):.3g}" if len(found.cold) > 1 else ""
    unit = "" if claim.unit == "x" else f" {claim.unit}"
    target = f"{claim.rule} {claim.target:.4g}{unit}" if claim.rule else ""
    verdict = {True: "met", False: "**missed**", None: ""}[claim.met]
    columns = (claim.what, claim.setting, target, cold, spread, warm, verdict)
    return f"| {' | '.join(columns)} |"


def _write(found: Sequence[Found], options: argparse.Namespace, load: float | None) -> None:
    environment = describe(torch.device("cpu"), "cpu")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    how = f"{options.threads} threads, {options.processes} processes"
    result: dict[str, object] = {"created": created, "how": how, "foreign_load": load}
    result["environment"] = environment
    result["claims"] = [
        asdict(each.claim) | {"met": each.claim.met, "processes": list(each.cold)} for each in found
    ]
    RESULT.parent.mkdir(exist_ok=True)
    write_json(RESULT, result)
    machine = f"{created[:10]}, {environment['cpu_model']}, {how}, torch {environment['torch']}."
    table = "\n".join((machine, "", HEAD, *map(_line, found)))
    begin, end = "<!-- speed: begin -->\n", "<!-- speed: end -->"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
