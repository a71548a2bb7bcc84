"""One cell measured by one process: prepared, found correct, then timed in shared rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from topokv.attention import Attend, Decode, attention_path_named, prepare_dense
from topokv.bench import Cell, Part, Settings, failed
from topokv.bench.worker.device import Context
from topokv.bench.worker.loaded import Choice, Loaded, choice_of
from topokv.bench.worker.replays import Replays, Sparse, replay
from topokv.bench.worker.verify import mismatch
from topokv.machine import clock_share
from topokv.results import Row
from topokv.scheduling import CandidateSchedule
from topokv.timing import (
    Arm,
    CpuTimes,
    Samples,
    StopRule,
    attention_backend,
    foreign_load,
    measure,
    median_faults,
)

# Scoring is paired with nothing: every third round is enough of it.
_SCORE_EVERY = 3
Facts = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row ready to be timed: its attention is right."""

    row: Row
    choice: Choice
    schedule: CandidateSchedule
    decode: Decode
    backend: str | None

    @property
    def arm(self) -> str:
        return " ".join(("sparse", *self.choice, str(self.row.attention)))

    @property
    def score_arm(self) -> str:
        return " ".join(("score", *self.choice, str(self.row.attention)))


@dataclass(frozen=True, slots=True)
class Timed:
    """Everything that one cell's rounds found; `conditions` are what they ran under."""

    samples: dict[str, Samples]
    replays: Replays
    dense_backend: str | None
    conditions: Facts


@dataclass(frozen=True, slots=True)
class Bench:
    """What one cell is measured with; `seed` shuffles the rounds.

    Rows of one way to attend share its buffers: many selectors need no more memory than one.
    """

    loaded: Loaded
    settings: Settings
    context: Context
    seed: int
    decodes: dict[str, Decode] = field(default_factory=dict)

    def measure(self, cell: Cell) -> list[Part]:
        """A part for each row of the cell."""
        rows = [self.prepare(row, cell.selected_tokens) for row in cell.rows]
        timed = self._time([row for row in rows if isinstance(row, Prepared)])
        return [self._part(row, timed) if isinstance(row, Prepared) else row for row in rows]

    def prepare(self, row: Row, selected_tokens: int) -> Prepared | Part:
        """The row's schedule and its attention over it, compared with masked dense attention.

        A part that failed where the two differ, and where the row's way to attend can't be used
        here; the cell's other rows are measured all the same.
        """
        choice, path = choice_of(row), str(row.attention)
        q, cache = self.loaded.workload.q, self.loaded.workload.cache
        scheduler = self.loaded.schedulers[choice]
        scheduler.selected_tokens = selected_tokens
        schedule = scheduler.schedule(q)
        if path not in self.decodes:
            self.decodes[path] = attention_path_named(path).make()
        try:
            attend = self.decodes[path].load(q, cache, schedule)
            output = attend()
        except ValueError as error:
            return failed(str(error))
        wrong = mismatch(output, q, cache, schedule.token_ids)
        if wrong is not None:
            return replace(failed(wrong), step="verify")
        return Prepared(row, choice, schedule, self.decodes[path], attention_backend(attend))

    def _load(self, row: Prepared) -> Attend:
        """The row's attention, loaded into the buffers that all rows of its kind share."""
        workload = self.loaded.workload
        return row.decode.load(workload.q, workload.cache, row.schedule)

    def _choose(self, row: Prepared) -> Attend:
        """What a step does before it attends: score, rank, expand and load, all of it afresh."""
        workload = self.loaded.workload
        schedule = self.loaded.schedulers[row.choice].schedule(workload.q)
        return row.decode.load(workload.q, workload.cache, schedule)

    def _time(self, rows: Sequence[Prepared]) -> Timed:
        dense = prepare_dense(self.loaded.workload.q, self.loaded.workload.cache)
        backend = attention_backend(dense)
        before = CpuTimes.now()
        samples = self._rounds(dense, rows) if rows else {}
        conditions: Facts = {
            "foreign_load": foreign_load(before, CpuTimes.now()),
            "clock_share": clock_share(self.context.device),
        }
        return Timed(samples, self._replay(dense, rows), backend, conditions)

    def _rounds(self, dense: Attend, rows: Sequence[Prepared]) -> dict[str, Samples]:
        arms = [Arm.of("dense", dense, repeat=True), Arm.of("again", dense)]
        for row in rows:
            choose = partial(self._choose, row)
            arms.append(Arm(row.arm, partial(self._load, row), repeat=True))
            arms.append(Arm.of(row.score_arm, choose, every=_SCORE_EVERY))
        return measure(
            arms,
            self.context.clock,
            StopRule(self.settings.rounds, self.settings.cell_seconds),
            warmup=self.settings.warmup,
            pairs=[("dense", row.arm) for row in rows],
            seed=self.seed,
        )

    def _replay(self, dense: Attend, rows: Sequence[Prepared]) -> Replays:
        cache_bytes = self.loaded.workload.cache.num_bytes
        sparse = [
            Sparse(
                name=row.arm,
                attention=str(row.row.attention),
                schedule=row.schedule,
                load=partial(self._load, row),
                touched_bytes=int(self._density(row) * cache_bytes),
            )
            for row in rows
        ]
        stop = StopRule(self.settings.rounds, self.settings.cell_seconds / 2)
        return replay(dense, sparse, self.loaded.workload, self.context, stop, self.seed)

    def _part(self, row: Prepared, timed: Timed) -> Part:
        dense, sparse = timed.samples["dense"], timed.samples[row.arm]
        times = {
            "dense_sdpa_ms": dense.cold,
            "dense_again_ms": timed.samples["again"].cold,
            "sparse_selected_ms": sparse.cold,
            "dense_warm_ms": dense.warm,
            "sparse_warm_ms": sparse.warm,
            "score_ms": timed.samples[row.score_arm].cold,
        }
        times |= self.loaded.samples_of(row.choice) | timed.replays.samples_of(row.arm)
        return Part(
            dense_backend=timed.dense_backend,
            sparse_backend=row.backend,
            samples=times,
            facts=self._facts(row, sparse) | timed.conditions,
            flags=self._flags(row, timed),
        )

    def _facts(self, row: Prepared, sparse: Samples) -> Facts:
        """What the row reads, what its selector keeps and what the process held, in bytes."""
        density = self._density(row)
        scheduler = self.loaded.schedulers[row.choice]
        kept = [scheduler.summary[part] for part in scheduler.mixture.parts if part != "keys"]
        return {
            **self.loaded.facts,
            "density": density,
            "selected_bytes": density * self.loaded.workload.cache.num_bytes,
            "summary_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
            "peak_memory_bytes": self.context.peak_memory_bytes(),
            "minor_faults": median_faults(sparse),
        }

    def _density(self, row: Prepared) -> float:
        """The share of K and V that the row reads; what heads read apart counts each time."""
        cache = self.loaded.workload.cache
        heads = max(row.schedule.token_ids.shape[1], cache.num_kv_heads)
        return heads * row.schedule.budget.selected_tokens / (cache.num_kv_heads * cache.kv_len)

    def _flags(self, row: Prepared, timed: Timed) -> tuple[str, ...]:
        workload, last_cache = self.loaded.workload, self.context.last_cache_bytes
        rules = {
            "math-fallback": "math" in (timed.dense_backend, row.backend),
            "cache-resident": bool(last_cache) and workload.cache.num_bytes <= (last_cache or 0),
            "no-scored-block": row.schedule.budget.num_scored_blocks == 0,
            "gaussian": not workload.is_real,
            f"no-graph: {timed.replays.failure}": timed.replays.failure is not None,
        }
        return tuple(flag for flag, holds in rules.items() if holds)
