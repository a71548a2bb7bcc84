"""What a report is made of: benchmark rows and test suites, each with where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from topokv.results import Compared, Row, Run

Cell: TypeAlias = str | int | float | None
MachineKey: TypeAlias = tuple[str, str, str, str]

BACKEND_ORDER = ("cpu", "cuda", "rocm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of one run. `run` has no rows here: it says where and how the row was measured.

    `compared` is how it stands to the baseline, where one was named and has the row.
    """

    row: Row
    run: Run
    machine: MachineKey
    source: str
    compared: Compared | None = None

    def metric(self, name: str) -> float | None:
        return self.row.metrics.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that failed: which step, which test or file, and the error's own line."""

    step: str
    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of one backend on one machine, or a run of any kind that never began, and why.

    `skips` counts each reason for a skipped test.
    """

    run: Run
    source: str
    status: str
    step: str | None = None
    reason: str | None = None
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float | None = None
    failures: tuple[Failure, ...] = ()
    skips: tuple[tuple[str, int], ...] = ()

    @property
    def ran(self) -> bool:
        """Whether any test was collected, so that its counts mean something."""
        return self.passed + self.failed + self.skipped > 0

    @property
    def machine(self) -> MachineKey:
        return machine_of(self.run)


def machine_of(run: Run) -> MachineKey:
    """What tells one column group from another: backend, machine, torch build and provenance."""
    machine = run.environment.get("fingerprint") or run.environment.get("device") or ""
    return (run.backend, str(machine), torch_of(run), run.provenance)


def torch_of(run: Run) -> str:
    """The version of torch with its build, such as `2.13.0+cpu`; empty where not recorded."""
    version = str(run.environment.get("torch") or "")
    build = str(run.environment.get("torch_build") or "").removeprefix("+")
    return f"{version}+{build}" if build and "+" not in version else version


def machine_order(key: MachineKey) -> tuple[Any, ...]:
    """A sort key: measured before published, cpu before cuda before rocm, then by machine."""
    backend, machine, torch, provenance = key
    known = BACKEND_ORDER.index(backend) if backend in BACKEND_ORDER else len(BACKEND_ORDER)
    return (provenance == "published", known, backend, machine, torch)
