"""A worker whose sparse arm takes longer than it needs, by the share that is given.

    python benchmarks/delayed_worker.py 0.1

Run by trust.py in the place of topokv's own worker, to see whether a planted delay is found.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from topokv.attention import Decode, attention_path_named
from topokv.attention.paths import AttentionPath
from topokv.bench.worker import cell
from topokv.bench.worker import process as worker


class Delayed:
    """A way to attend, each call stretched by `share` of its own time."""

    def __init__(self, decode: Decode, share: float) -> None:
        self._decode, self._share = decode, share

    def load(self, *step: Any) -> Callable[[], Any]:
        attend = self._decode.load(*step)

        def call() -> Any:
            start = perf_counter()
            output = attend()
            until = start + (perf_counter() - start) * (1 + self._share)
            while perf_counter() < until:
                pass
            return output

        return call


def delayed(name: str, share: float) -> AttentionPath:
    return AttentionPath(name, lambda: Delayed(attention_path_named(name).make(), share))


def main() -> None:
    share = float(sys.argv[1])
    cell.attention_path_named = lambda name: delayed(name, share)
    worker.main()


if __name__ == "__main__":
    main()
