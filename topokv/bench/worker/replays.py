"""The other two ways of timing a GPU: by the wall, and as replayed graphs over rotated inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from topokv.attention import Attend, attention_path_named, prepare_dense
from topokv.bench.worker.device import Context, free_bytes
from topokv.inputs import Workload
from topokv.scheduling import CandidateSchedule, schedule_tokens
from topokv.tensors import KVCache
from topokv.timing import (
    Arm,
    Clock,
    GraphArm,
    StopRule,
    WallClock,
    measure,
    rotation_bytes,
    rotation_count,
)

# Copies of the cache take no more of the device's free memory than this share.
_COPIES_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse arm's name, its way to attend, its schedule and the bytes of K and V it touches."""

    name: str
    attention: str
    schedule: CandidateSchedule
    load: Callable[[], Attend]
    touched_bytes: int


@dataclass(slots=True)
class Replays:
    """Times in ms by arm, `dense` and each sparse one's name; empty for a way that didn't run.

    `failure` says why graphs could not be timed; the other clocks' times stand without them.
    """

    wall: dict[str, list[float]] = field(default_factory=dict)
    graph: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None

    def samples_of(self, name: str) -> dict[str, list[float]]:
        """A row's samples of both arms."""
        found = {}
        for kind, times in (("wall", self.wall), ("graph", self.graph)):
            if name in times:
                found[f"dense_{kind}_ms"] = times["dense"]
                found[f"sparse_{kind}_ms"] = times[name]
        return found


def replay(
    dense: Attend,
    rows: Sequence[Sparse],
    workload: Workload,
    context: Context,
    stop: StopRule,
    seed: int,
) -> Replays:
    """What the context's further ways of timing say; nothing on a CPU, which has one clock."""
    found = Replays()
    if context.modes.wall:
        arms = [Arm.of("dense", dense), *(Arm(row.name, row.load) for row in rows)]
        found.wall = _times(arms, WallClock(context.clock, context.device), stop, seed)
    if context.modes.graph:
        try:
            found.graph = _graph_times(rows, workload, context, stop, seed)
        except RuntimeError as error:
            # A call that asks the host in between, or copies that do not fit, can't be captured.
            found.failure = " ".join(str(error).split())[:100]
    return found


def _times(arms: Sequence[Arm], clock: Clock, stop: StopRule, seed: int) -> dict[str, list[float]]:
    pairs = [("dense", arm.name) for arm in arms[1:]]
    samples = measure(arms, clock, stop, warmup=1, pairs=pairs, seed=seed)
    return {name: found.cold for name, found in samples.items()}


def _graph_times(
    rows: Sequence[Sparse], workload: Workload, context: Context, stop: StopRule, seed: int
) -> dict[str, list[float]]:
    least = rotation_bytes(context.last_cache_bytes)
    wanted = rotation_count(least, workload.cache.num_bytes)
    caches = copies(workload.cache, wanted, free_bytes(context.device))
    calls = {"dense": [prepare_dense(workload.q, cache) for cache in caches]}
    for row in rows:
        count = rotation_count(least, row.touched_bytes)
        calls[row.name] = rotated(row, workload, caches, count, seed)
    graphs = {name: GraphArm(attends, context.device) for name, attends in calls.items()}
    arms = [Arm.of(name, graph) for name, graph in graphs.items()]
    whole = _times(arms, context.clock, stop, seed)
    return {n: [time / graphs[n].num_calls for time in times] for n, times in whole.items()}


def copies(cache: KVCache, count: int, free: int | None) -> list[KVCache]:
    """The cache and as many copies as make `count`, if a quarter of free memory holds them."""
    fitting = count if free is None else 1 + int(_COPIES_SHARE * free) // cache.num_bytes
    return [
        cache if index == 0 else KVCache(cache.k.clone(), cache.v.clone())
        for index in range(min(count, fitting))
    ]


def rotated(
    row: Sparse, workload: Workload, caches: Sequence[KVCache], count: int, seed: int
) -> list[Attend]:
    """`count` calls of the row's size, each with scored blocks drawn anew, cache after cache.

    Sinks and newest blocks are the schedule's own: within one cache they are read again.
    """
    budget = row.schedule.budget
    batch, groups, _ = row.schedule.token_ids.shape
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, groups, -(-budget.kv_len // budget.block_size))
    path = attention_path_named(row.attention)
    calls = []
    for index in range(count):
        scores = torch.rand(shape, generator=generator).to(workload.q.device)
        drawn = schedule_tokens(scores, budget)
        calls.append(path.prepare(workload.q, caches[index % len(caches)], drawn))
    return calls
