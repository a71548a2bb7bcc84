"""One worker process as its parent sees it: started, listened to with patience, always ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from topokv.bench import Settings
from topokv.core import PACKAGE

WORKER = (sys.executable, "-m", "topokv.bench.worker")


class ChildError(Exception):
    """A worker that ended or fell silent before it was done; the message is the reason."""

    def __init__(self, reason: str, *, out_of_memory: bool = False) -> None:
        super().__init__(reason)
        self.out_of_memory = out_of_memory


class Child:
    """A worker process, killed on leaving the `with` block if it has not ended by itself."""

    def __init__(
        self,
        settings: Settings,
        process: int,
        done: Sequence[int],
        patience: float,
        command: Sequence[str] | None = None,
    ) -> None:
        self._patience = patience + settings.max_seconds
        self._kills = _kills_for_memory()
        # Closed in __exit__, like the process's pipes.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # A session of its own, so that Ctrl-C reaches the parent alone, which then ends it.
        self._process = subprocess.Popen(
            list(command or WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env=_environment(),
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._tell({"settings": settings.to_json(), "process": process, "done": list(done)})

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                _close(file)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the worker says, until it ends; ChildError where it ends badly or says nothing."""
        while True:
            try:
                line = self._lines.get(timeout=self._patience)
            except queue.Empty:
                raise ChildError(f"no answer for {self._patience:.0f} s") from None
            if line is None:
                raise self._death()
            yield _message(line)

    def go_on(self) -> None:
        """Let the worker go on; what it said is stored."""
        self._tell("go")

    def _tell(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has died; what it said before, and why it died, is still to be read.
            return

    def _death(self) -> ChildError:
        code = self._process.wait()
        if code == -getattr(signal, "SIGKILL", 9) and _kills_for_memory() > self._kills:
            return ChildError("the system ended the process: out of memory", out_of_memory=True)
        said = self._last_error()
        return ChildError(f"the process ended with code {code}" + (f": {said}" if said else ""))

    def _last_error(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4096))
        lines = self._errors.read().decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _message(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or "event" not in message:
        raise ChildError(f"the process said what is no message: {line.strip()[:80]}")
    return message


def _close(file: Any) -> None:
    try:
        file.close()
    except BrokenPipeError:
        # The worker ended with words of ours unread.
        return


def _environment() -> dict[str, str]:
    """The environment of a worker, in which a worker finds the same topokv as its parent."""
    home = str(PACKAGE.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        # A profiler that reports its own steps would bury an error's last line.
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99"),
    }
    return {**os.environ, **ours}


def _kills_for_memory(stat: Path = Path("/proc/vmstat")) -> int:
    """How many processes Linux has killed for want of memory; 0 where it does not say."""
    try:
        words = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
        return int(words["oom_kill"])
    except (OSError, KeyError, ValueError):
        return 0
