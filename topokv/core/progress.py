"""Progress of long work: one line on standard error that rewrites itself, on a terminal only."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType


class Progress:
    """A line that says what is going on; nothing is written where nobody watches."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write("")

    def show(self, text: str) -> None:
        """Put `text` where the last one stood."""
        self._write(f"{self._title}: {text}")

    def _write(self, line: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{line[:width]}")
            sys.stderr.flush()
