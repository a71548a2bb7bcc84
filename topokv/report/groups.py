"""Column groups: each machine, build and dtype gets a short name, and a legend says what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from topokv.report.entries import Entry, MachineKey, Suite, machine_order, torch_of
from topokv.results import Run

GroupKey: TypeAlias = tuple[MachineKey, str | None]


@dataclass(frozen=True, slots=True)
class Legend:
    """Short names of machines, in order, and one run of each distinct machine."""

    names: dict[MachineKey, str]
    runs: dict[MachineKey, Run]

    def lines(self) -> list[str]:
        """One line a machine: its short name and what stands behind it."""
        return [f"{self.names[key]}: {describe(run)}" for key, run in self.runs.items()]


def legend(items: Iterable[Entry | Suite]) -> Legend:
    """Names such as `cpu`, or `cuda 1` and `cuda 2` where a backend ran on several machines.

    Test files say less of their machine than benchmark files: one that fits a single benchmarked
    machine takes that machine's name.
    """
    runs: dict[MachineKey, Run] = {}
    for item in items:
        runs.setdefault(item.machine, item.run)
    ordered = sorted(runs, key=machine_order)
    same_as = {key: _same_machine(key, runs) for key in ordered}
    distinct = [key for key in ordered if same_as[key] == key]
    total, seen = Counter(_stem(runs[key]) for key in distinct), Counter[str]()
    names: dict[MachineKey, str] = {}
    for key in distinct:
        stem = _stem(runs[key])
        seen[stem] += 1
        names[key] = stem if total[stem] == 1 else f"{stem} {seen[stem]}"
    return Legend(
        {key: names[same_as[key]] for key in ordered}, {key: runs[key] for key in distinct}
    )


def _same_machine(key: MachineKey, runs: dict[MachineKey, Run]) -> MachineKey:
    """The one machine with a fingerprint that `key`, which has none, agrees with; else `key`."""
    if runs[key].environment.get("fingerprint"):
        return key
    fitting = [
        other
        for other, run in runs.items()
        if run.environment.get("fingerprint") and _agree(runs[key], run)
    ]
    return fitting[0] if len(fitting) == 1 else key


def _agree(one: Run, other: Run) -> bool:
    """Whether what both runs record of backend, device and torch is the same."""
    device = [str(run.environment.get("device") or "") for run in (one, other)]
    told = (device, [torch_of(one), torch_of(other)])
    return (one.backend, one.provenance) == (other.backend, other.provenance) and all(
        a == b for a, b in told if a and b
    )


def _stem(run: Run) -> str:
    return f"{run.backend} published" if run.provenance == "published" else run.backend


def describe(run: Run) -> str:
    """A machine in one line: device, torch, threads, fingerprint, and whether it was published."""
    env = run.environment
    parts = [
        str(env.get("device") or "device not recorded"),
        f"torch {torch_of(run)}" if torch_of(run) else "",
        f"{env['threads']} threads" if env.get("threads") and run.backend == "cpu" else "",
        f"fingerprint {env['fingerprint']}" if env.get("fingerprint") else "",
        "published figures, not measured by topokv" if run.provenance == "published" else "",
    ]
    return ", ".join(part for part in parts if part)


def group_names(entries: Iterable[Entry], names: dict[MachineKey, str]) -> dict[GroupKey, str]:
    """A name for each (machine, dtype) of `entries`, in the legend's order.

    The dtype is part of the name only where the entries have several.
    """
    keys = dict.fromkeys((entry.machine, entry.row.dtype) for entry in entries)
    several = len({dtype for _, dtype in keys}) > 1
    ordered = sorted(keys, key=lambda key: (machine_order(key[0]), key[1] or ""))
    return {
        key: f"{names[key[0]]} {key[1] or 'dtype unknown'}" if several else names[key[0]]
        for key in ordered
    }
