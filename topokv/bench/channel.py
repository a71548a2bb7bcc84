"""The worker's side of the conversation with its parent: one JSON value a line, both ways."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, TextIO


class Channel:
    """Messages to and from the parent.

    Takes over standard output: what a library prints goes to standard error instead. When the
    parent is gone the process ends at once, so that a killed run leaves nothing behind.
    """

    def __init__(self) -> None:
        # The inherited handle is kept to ourselves; number 1 becomes another name of number 2.
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # Blocked in a read, the thread costs nothing while time is taken.
        for line in sys.stdin:
            self._inbox.put(line)
        os._exit(1)

    def receive(self) -> Any:
        """The parent's next message, waited for."""
        return json.loads(self._inbox.get())

    def send(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
        self._out.flush()

    def wait(self) -> None:
        """Return when the parent has stored what was sent: it must not work while time is taken."""
        self.receive()
