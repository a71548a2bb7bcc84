"""The worker's side of a run: one process that prepares, verifies and times every cell once."""

from topokv.bench.worker.process import main

__all__ = ["main"]
