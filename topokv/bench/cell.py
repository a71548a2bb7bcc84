"""One cell measured by one process: prepared, found correct, then timed in shared rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from topokv.attention import Attend, attention_path_named, prepare_dense
from topokv.bench.device import Context
from topokv.bench.loaded import Choice, Loaded, choice_of
from topokv.bench.parts import Part, failed
from topokv.bench.plan import Cell, Settings
from topokv.bench.verify import mismatch
from topokv.environment import clock_share
from topokv.record import Row
from topokv.schedule import CandidateSchedule
from topokv.scheduler import Scheduler
from topokv.timing.backend import attention_backend
from topokv.timing.faults import CpuTimes, foreign_load, peak_memory_bytes
from topokv.timing.rounds import Arm, Samples, StopRule, measure, median_faults

# Scoring is paired with nothing: every third round is enough of it.
_SCORE_EVERY = 3
Facts = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row ready to be timed; `wrong` says why it must not be."""

    row: Row
    choice: Choice
    schedule: CandidateSchedule
    attend: Attend
    backend: str | None
    wrong: str | None

    @property
    def arm(self) -> str:
        return " ".join(("sparse", *self.choice, str(self.row.attention)))

    @property
    def score_arm(self) -> str:
        return " ".join(("score", *self.choice))


def measure_cell(
    cell: Cell, loaded: Loaded, settings: Settings, context: Context, seed: int
) -> list[Part]:
    """A part for each row of the cell. `seed` shuffles the rounds."""
    dense = prepare_dense(loaded.workload.q, loaded.workload.cache)
    dense_backend = attention_backend(dense)
    rows = [prepare(row, cell.selected_tokens, loaded) for row in cell.rows]
    right = [row for row in rows if row.wrong is None]
    before = CpuTimes.now()
    samples = _time(dense, right, loaded, settings, context, seed) if right else {}
    conditions: Facts = {
        "foreign_load": foreign_load(before, CpuTimes.now()),
        "clock_share": clock_share(context.device),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    return [
        _part(row, samples, loaded, context, dense_backend, conditions)
        if row.wrong is None
        else replace(failed(row.wrong), step="verify")
        for row in rows
    ]


def prepare(row: Row, selected_tokens: int, loaded: Loaded) -> Prepared:
    """The row's schedule and its attention over it, compared with masked dense attention."""
    choice = choice_of(row)
    q, cache = loaded.workload.q, loaded.workload.cache
    schedule = _scoring(loaded.schedulers[choice], selected_tokens, loaded)()
    attend = attention_path_named(str(row.attention)).prepare(q, cache, schedule)
    wrong = mismatch(attend(), q, cache, schedule.token_ids)
    return Prepared(row, choice, schedule, attend, attention_backend(attend), wrong)


def _scoring(
    scheduler: Scheduler, selected_tokens: int, loaded: Loaded
) -> Callable[[], CandidateSchedule]:
    """A call that chooses so many tokens; budgets of one workload share a scheduler."""
    q = loaded.workload.q

    def choose() -> CandidateSchedule:
        scheduler.selected_tokens = selected_tokens
        return scheduler.schedule(q)

    return choose


def _time(
    dense: Attend,
    rows: Sequence[Prepared],
    loaded: Loaded,
    settings: Settings,
    context: Context,
    seed: int,
) -> dict[str, Samples]:
    arms = {"dense": Arm("dense", dense, repeat=True), "again": Arm("again", dense)}
    for row in rows:
        arms[row.arm] = Arm(row.arm, row.attend, repeat=True)
        budget = row.schedule.budget.selected_tokens
        choose = _scoring(loaded.schedulers[row.choice], budget, loaded)
        arms[row.score_arm] = Arm(row.score_arm, choose, every=_SCORE_EVERY)
    return measure(
        list(arms.values()),
        context.clock,
        StopRule(settings.rounds, settings.cell_seconds),
        warmup=settings.warmup,
        pairs=[("dense", row.arm) for row in rows],
        seed=seed,
    )


def _part(
    row: Prepared,
    samples: dict[str, Samples],
    loaded: Loaded,
    context: Context,
    dense_backend: str | None,
    conditions: Facts,
) -> Part:
    dense, sparse = samples["dense"], samples[row.arm]
    times = {
        "dense_sdpa_ms": dense.cold,
        "dense_again_ms": samples["again"].cold,
        "sparse_selected_ms": sparse.cold,
        "dense_warm_ms": dense.warm,
        "sparse_warm_ms": sparse.warm,
        "score_ms": samples[row.score_arm].cold,
        **loaded.samples_of(row.choice),
    }
    faults: Facts = {"minor_faults": median_faults(sparse)}
    return Part(
        dense_backend=dense_backend,
        sparse_backend=row.backend,
        samples=times,
        facts={**loaded.facts, **conditions, **_sizes(row, loaded), **faults},
        flags=_flags(row, loaded, context, dense_backend),
    )


def _sizes(row: Prepared, loaded: Loaded) -> Facts:
    """What the row reads and what its selector keeps, in bytes."""
    cache = loaded.workload.cache
    heads = max(row.schedule.token_ids.shape[1], cache.num_kv_heads)
    density = heads * row.schedule.budget.selected_tokens / (cache.num_kv_heads * cache.kv_len)
    scheduler = loaded.schedulers[row.choice]
    kept = [scheduler.summary[part] for part in scheduler.mixture.parts if part != "keys"]
    return {
        "density": density,
        "selected_bytes": density * cache.num_bytes,
        "summary_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
    }


def _flags(
    row: Prepared, loaded: Loaded, context: Context, dense_backend: str | None
) -> tuple[str, ...]:
    flags = []
    if "math" in (dense_backend, row.backend):
        flags.append("math-fallback")
    if context.last_cache_bytes and loaded.workload.cache.num_bytes <= context.last_cache_bytes:
        flags.append("cache-resident")
    if row.schedule.budget.num_scored_blocks == 0:
        flags.append("no-scored-block")
    if not loaded.workload.is_real:
        flags.append("gaussian")
    return tuple(flags)
