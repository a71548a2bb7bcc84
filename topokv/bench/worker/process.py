"""One fresh process that measures every cell once: `python -m topokv.bench.worker`.

It reads a job from standard input, answers in JSON lines, and waits after each cell until its
parent has stored it. Several such processes, one after another, show how processes differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from topokv.attention import ATTENTION_PATHS
from topokv.bench import REAL_SELECTORS, Cell, Channel, Part, Plan, Settings, failed, grid, identity
from topokv.bench.worker.cell import Bench
from topokv.bench.worker.device import Context, resolve, set_threads
from topokv.bench.worker.kept import Kept, kept_by, with_quality
from topokv.bench.worker.loaded import Loaded, load_for
from topokv.bench.worker.sources import describe
from topokv.machine import describe as describe_environment
from topokv.scheduling import mixture_of
from topokv.tensors import DTYPES, dtype_name


def main() -> None:
    channel = Channel()
    job = channel.receive()
    settings = Settings.from_json(job["settings"])
    try:
        device, plan = _plan(settings)
    except (ValueError, OSError) as error:
        channel.send("refused", message=str(error))
        return
    context = Context.create(device, _dtype(settings, device), settings.graphs)
    channel.send("plan", **_announce(plan, context))
    channel.wait()
    with torch.inference_mode():
        _work(plan, job, settings, context, channel)
    channel.send("done")


def _plan(settings: Settings) -> tuple[torch.device, Plan]:
    device = resolve(settings.device, require_device=settings.require_device)
    set_threads(settings.threads)
    plan = grid(
        settings,
        describe(settings),
        dtype=dtype_name(_dtype(settings, device)),
        selectors=REAL_SELECTORS,
        sharing_of=lambda name: mixture_of(name).sharing,
        attention=[path.name for path in ATTENTION_PATHS],
    )
    return device, plan


def _dtype(settings: Settings, device: torch.device) -> torch.dtype:
    """As asked; else what the device is used with: half precision on GPUs, float32 on CPUs."""
    return DTYPES[settings.dtype or ("float32" if device.type == "cpu" else "float16")]


def _announce(plan: Plan, context: Context) -> dict[str, Any]:
    return {
        "backend": context.backend,
        "environment": describe_environment(context.device, context.backend),
        "flush_bytes": context.flush_bytes,
        "notes": plan.notes,
        "cells": [[identity(row) for row in cell.rows] for cell in plan.cells],
    }


def _work(
    plan: Plan, job: dict[str, Any], settings: Settings, context: Context, channel: Channel
) -> None:
    """Measure the cells that the job names, one workload in memory at a time."""
    process = Process(plan, settings, context, job["process"])
    done = set(job["done"])
    for index in range(len(plan.cells)):
        if index not in done:
            channel.send("started", cell=index)
            parts = process.measure(index)
            channel.send("measured", cell=index, parts=[part.to_json() for part in parts])
            channel.wait()


@dataclass(slots=True)
class Process:
    """A process's measurements; it holds the workload of the cell that it measured last."""

    plan: Plan
    settings: Settings
    context: Context
    process: int
    loaded: Loaded | None = None
    kept: Kept = field(default_factory=dict)

    def measure(self, index: int) -> list[Part]:
        """A part for each row of a cell; whatever goes wrong is those rows' end and no other's."""
        cell = self.plan.cells[index]
        seed = self.settings.seed * 1_000_003 + self.process * 1009 + index
        try:
            bench = Bench(self._load(cell), self.settings, self.context, seed)
            return with_quality(cell, bench.measure(cell), self.kept)
        except Exception as error:
            self.loaded = None
            return [_no_part(error)] * len(cell.rows)

    def _load(self, cell: Cell) -> Loaded:
        if self.loaded is None or self.loaded.source != cell.source:
            # Let go before the next one is made: two caches may not fit.
            self.loaded = None
            self.loaded = load_for(cell, self.settings, self.context)
            # What is kept doesn't vary with the process: once is enough.
            if self.process == 0:
                self.kept = kept_by(cell.source, self.plan, self.settings)
        return self.loaded


def _no_part(error: Exception) -> Part:
    """A part that says why a cell could not be measured, running out of memory told apart."""
    text = " ".join(str(error).split()) or type(error).__name__
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if memory or "can't allocate memory" in text or "out of memory" in text:
        return failed(text, "oom")
    return failed(f"{type(error).__name__}: {text}")
