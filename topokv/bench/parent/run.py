"""The parent of a run: fresh processes one after another, and a results file that is always whole.

It loads no torch. After every (process, cell) it writes the file anew, while the process waits; a
row that has fewer processes than asked is `interrupted` and says how many it has. So a run that is
killed at any moment leaves all that was finished before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topokv.bench import Part, Settings, check, failed, planned
from topokv.bench.parent.child import Child, ChildError
from topokv.bench.parent.metrics import summarise
from topokv.core import claim, require_regular, require_room
from topokv.results import Row, Run, write

# How long a process may say nothing before it counts as hung, beside the time caps it was given.
PATIENCE_SECONDS = 300.0

Listener = Callable[["Step"], None]


@dataclass(frozen=True, slots=True)
class Step:
    """Where a run stands: counted from 1."""

    process: int
    num_processes: int
    cell: int
    num_cells: int
    row: Row


@dataclass(slots=True)
class Job:
    """A run under way: what was asked, and the parts of each cell's rows so far."""

    settings: Settings
    output: Path | None
    folder: Path
    command: tuple[str, ...]
    notify: Listener
    warn: Callable[[str], None]
    patience: float = PATIENCE_SECONDS
    worker: Sequence[str] | None = None
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    plan: Mapping[str, Any] = field(default_factory=dict)
    rows: list[list[Row]] = field(default_factory=list)
    parts: list[list[list[Part]]] = field(default_factory=list)
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def path(self) -> Path:
        return self.output or self.folder / f"bench-{self.plan['backend']}.json"

    def run(self) -> Run:
        """The results file's content as it stands."""
        processes = self.settings.processes
        rows = (
            summarise(row, parts, processes)
            for rows, cell in zip(self.rows, self.parts, strict=True)
            for row, parts in zip(rows, cell, strict=True)
        )
        return Run(
            kind="bench",
            backend=self.plan["backend"],
            created=self.created,
            command=self.command,
            environment=self.plan["environment"],
            settings=self._settings(),
            rows=tuple(rows),
        )

    def _settings(self) -> dict[str, Any]:
        """What was asked; of a capture only the file's name, since folders name a machine."""
        names = [Path(kv).name for kv in self.settings.kv]
        return self.settings.to_json() | {"kv": names, "flush_bytes": self.plan["flush_bytes"]}

    def write(self) -> None:
        write(self.path, self.run())


def measure(job: Job) -> Run:
    """Run every process of the job and return what the results file holds.

    Raises ValueError for what the worker refuses, OSError where nothing could be started, the file
    can't be written or another run is writing it. KeyboardInterrupt passes through.
    """
    check(job.settings)
    check_writable(job.output, job.folder)
    with job.held:
        for process in range(job.settings.processes):
            _measure_process(job, process)
    return job.run()


def check_writable(output: Path | None, folder: Path) -> None:
    """Raise OSError unless the results file can be written; nothing stays behind."""
    if output is not None:
        require_regular(output)
    require_room(folder / "bench.json" if output is None else output)


def _measure_process(job: Job, process: int) -> None:
    """One more value of every cell; a process that dies is replaced for the cells after."""
    done = _given_up(job)
    over = False
    while not over:
        with Child(job.settings, process, sorted(done), job.patience, job.worker) as child:
            over = _listen(job, child, process, done)


def _given_up(job: Job) -> set[int]:
    """Cells that an earlier process could not measure: once more would fail once more."""
    return {
        index
        for index, cell in enumerate(job.parts)
        if cell and all(any(part.status != "ok" for part in parts) for parts in cell)
    }


def _listen(job: Job, child: Child, process: int, done: set[int]) -> bool:
    """Take in what the process says; True when it is done, False when it died in a cell."""
    current: int | None = None
    try:
        for message in child.messages():
            if message["event"] == "done":
                return True
            if message["event"] == "started":
                current = message["cell"]
                _report(job, process, message["cell"])
            else:
                current = None
                _take(job, message, done)
                child.go_on()
    except ChildError as error:
        return _bury(job, error, current, done)
    return True


def _take(job: Job, message: Mapping[str, Any], done: set[int]) -> None:
    if message["event"] == "refused":
        raise ValueError(message["message"])
    if message["event"] == "plan":
        _take_plan(job, message)
    else:
        _take_parts(job, message["cell"], map(Part.from_json, message["parts"]))
        done.add(message["cell"])


def _bury(job: Job, error: ChildError, current: int | None, done: set[int]) -> bool:
    """Record a process's death on the cell it was in; True where no cell is left to measure."""
    if not job.plan:
        raise ChildProcessError(f"measuring did not begin: {error}") from error
    left = [index for index in range(len(job.rows)) if index not in done]
    if current is None and not left:
        return True
    cell = left[0] if current is None else current
    died = failed(str(error), "oom" if error.out_of_memory else "failed")
    _take_parts(job, cell, [died] * len(job.rows[cell]))
    done.add(cell)
    return False


def _take_plan(job: Job, message: Mapping[str, Any]) -> None:
    if job.plan:
        return
    job.plan = message
    for note in message["notes"]:
        job.warn(note)
    job.rows = [[planned(asked) for asked in cell] for cell in message["cells"]]
    job.parts = [[[] for _ in cell] for cell in job.rows]
    # Only now: a run that was refused leaves nothing behind.
    job.path.parent.mkdir(parents=True, exist_ok=True)
    job.held.enter_context(claim(job.path))
    job.write()


def _take_parts(job: Job, cell: int, parts: Any) -> None:
    for row, part in zip(job.parts[cell], parts, strict=True):
        row.append(part)
    job.write()


def _report(job: Job, process: int, cell: int) -> None:
    job.notify(
        Step(
            process=process + 1,
            num_processes=job.settings.processes,
            cell=cell + 1,
            num_cells=len(job.rows),
            row=job.rows[cell][0],
        )
    )
