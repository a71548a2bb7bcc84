"""A workload in memory, and what is measured once for all of its budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from topokv.bench import Cell, Settings, Source
from topokv.bench.worker.device import Context
from topokv.bench.worker.sources import load
from topokv.inputs import Workload
from topokv.results import Row
from topokv.scheduling import Scheduler, mixture_of
from topokv.timing import Arm, Samples, StopRule, copy_bytes, measure, prepare_copy, prepare_read

# Reading all of K once more takes long and needs no pairs: a few rounds are enough.
_ROUNDS = 5
Choice = tuple[str, str]


@dataclass(slots=True)
class Loaded:
    """One workload and layer: its schedulers by (selector, sharing), and times in ms by arm.

    `facts` hold the bytes that bandwidth is computed from.
    """

    source: Source
    workload: Workload
    schedulers: dict[Choice, Scheduler] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, float | None] = field(default_factory=dict)

    def samples_of(self, choice: Choice) -> dict[str, list[float]]:
        """Times of a selector's summary and update, and of the plain read and copy."""
        names = {"copy": "copy_ms", "read": "read_ms"}
        names |= {_arm_name(kind, choice): f"{kind}_ms" for kind in ("summary", "update")}
        return {names[arm]: times for arm, times in self.samples.items() if arm in names}


def choice_of(row: Row) -> Choice:
    """The row's selector and who shares its schedules."""
    return str(row.selector), str(row.sharing)


def load_for(cell: Cell, settings: Settings, context: Context) -> Loaded:
    """The cell's workload, with a scheduler for each selector of its rows, all timed."""
    loaded = Loaded(cell.source, load(cell.source, settings.seed, context.dtype, context.device))
    for row in cell.rows:
        choice = choice_of(row)
        if choice not in loaded.schedulers:
            loaded.schedulers[choice] = scheduler(loaded.workload.cache.k, choice, settings)
    _time_once(loaded, settings, context)
    return loaded


def scheduler(k: Tensor, choice: Choice, settings: Settings) -> Scheduler:
    """A selector's scheduler over `k`; its budget is set for each cell."""
    return Scheduler(
        k,
        1,
        selector=choice[0],
        sharing=choice[1],
        block_size=settings.block_size,
        sink_blocks=settings.sink_blocks,
        local_blocks=settings.local_blocks,
        seed=settings.seed,
    )


def _time_once(loaded: Loaded, settings: Settings, context: Context) -> None:
    cache = loaded.workload.cache
    moved = copy_bytes(cache.num_bytes, context.last_cache_bytes)
    copy, copied = prepare_copy(cache.k, moved)
    loaded.facts = {"copy_bytes": copied, "cache_bytes": cache.num_bytes}
    arms = [Arm.of("copy", copy), Arm.of("read", prepare_read(cache.k, cache.v))]
    for choice in loaded.schedulers:
        arms += _upkeep_arms(cache.k, choice, settings)
    stop = StopRule(_ROUNDS, settings.cell_seconds, min_rounds=_ROUNDS)
    timed: dict[str, Samples] = measure(arms, context.clock, stop, warmup=1, seed=settings.seed)
    loaded.samples = {name: samples.cold for name, samples in timed.items()}


def _upkeep_arms(k: Tensor, choice: Choice, settings: Settings) -> list[Arm]:
    """A selector's summary of all of K and its update by a token, where it keeps anything."""
    selector = mixture_of(choice[0])
    if selector.floats_per_block(k.shape[3], settings.block_size) == 0:
        return []
    # A scheduler of its own: what is timed here grows with every call.
    growing = scheduler(k, choice, settings)
    token = k[:, :, -1:].clone()

    def summarise() -> object:
        return selector.summarise(k, settings.block_size, sharing=choice[1], seed=settings.seed)

    def update() -> None:
        growing.append(token)

    return [
        Arm.of(_arm_name("summary", choice), summarise),
        Arm.of(_arm_name("update", choice), update),
    ]


def _arm_name(kind: str, choice: Choice) -> str:
    return " ".join((kind, *choice))
