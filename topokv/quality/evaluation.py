"""Every selector on every captured query at several budgets: rows with intervals and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from topokv.core import DEFAULT_LOCAL_BLOCKS, DEFAULT_SINK_BLOCKS
from topokv.inputs import Capture, Query, captured
from topokv.quality.measures import DenseReference, gap_closed, interval, resampled_means, verdict
from topokv.results import Row
from topokv.scheduling import (
    SELECTORS,
    BlockSummary,
    Budget,
    Mixture,
    mixture_of,
    schedule_tokens,
    token_budget,
)
from topokv.tensors import KVCache

# The ends of the scale, and what a schedule that looks at no key would do.
RANDOM, ORACLE, STREAMING = "random", "oracle", "streaming"


@dataclass(frozen=True, slots=True)
class Setting:
    """A block size and a budget: what all selectors are compared at."""

    block_size: int
    selected_tokens: int


DEFAULT_SETTINGS = (
    Setting(16, 512),
    Setting(16, 1024),
    Setting(64, 512),
    Setting(64, 1024),
    Setting(64, 2048),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a capture. `sharing` None leaves each selector its own.

    Raises ValueError for a seed that leaves no room beside it for the query's own number.
    """

    arms: tuple[Mixture, ...]
    settings: tuple[Setting, ...] = DEFAULT_SETTINGS
    sharing: str | None = None
    sink_blocks: int = DEFAULT_SINK_BLOCKS
    local_blocks: int = DEFAULT_LOCAL_BLOCKS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be from 0 to {2**32 - 1}, got {self.seed}")

    def sharing_of(self, arm: Mixture) -> str:
        return self.sharing or arm.sharing

    def budget(self, setting: Setting, kv_len: int) -> Budget:
        """How `setting` is filled for a query that attends `kv_len` tokens."""
        return token_budget(
            kv_len=kv_len,
            block_size=setting.block_size,
            selected_tokens=setting.selected_tokens,
            sink_blocks=self.sink_blocks,
            local_blocks=self.local_blocks,
        )


def arms_for(names: list[str]) -> tuple[Mixture, ...]:
    """Selectors and mixtures by name, all selectors where none is named.

    random, streaming and oracle are always among them: every verdict is against them.
    """
    asked = [mixture_of(name) for name in names or [s.name for s in SELECTORS]]
    named = {arm.name: arm for arm in (*map(mixture_of, (RANDOM, STREAMING)), *asked)}
    named.pop(ORACLE, None)
    return (*named.values(), mixture_of(ORACLE))


# One number for each metric, of one arm at one setting; one such mapping a captured query.
Cells: TypeAlias = dict[tuple[Setting, str], list[dict[str, float]]]


def evaluate(
    capture: Capture, question: Question, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each setting and arm of `question`, over all captured queries of all layers.

    Raises ValueError where a captured query attends fewer tokens than a setting's budget.
    """
    _require_tokens(capture, question)
    cells: Cells = {}
    with torch.inference_mode():
        for layer in capture.layers:
            progress(f"{capture.name}, layer {layer}")
            work = captured(capture, layer)
            for query in work.queries:
                _judge(work.cache, query, layer, question, cells)
    return [
        row for setting in question.settings for row in _rows(capture, question, setting, cells)
    ]


def _require_tokens(capture: Capture, question: Question) -> None:
    least = capture.positions[0] + 1
    for setting in question.settings:
        if setting.selected_tokens > least:
            raise ValueError(
                f"selected_tokens {setting.selected_tokens} exceeds the {least} tokens that the "
                f"first captured query of {capture.name} attends"
            )


def _judge(cache: KVCache, query: Query, layer: int, question: Question, cells: Cells) -> None:
    """Add what each arm keeps of one query's attention at each setting."""
    seen = KVCache(cache.k[:, :, : query.kv_len], cache.v[:, :, : query.kv_len])
    reference = DenseReference.of(query.q, seen)
    # Random blocks drawn anew for each query: one draw for all would be one sample, not many.
    seed = question.seed + (layer << 32) + query.kv_len
    for block_size in {setting.block_size: None for setting in question.settings}:
        summaries = _summaries(seen.k, block_size, question, seed)
        for setting in question.settings:
            if setting.block_size != block_size:
                continue
            budget = question.budget(setting, query.kv_len)
            for arm, token_ids in _schedules(query.q, summaries, question, budget):
                measured = reference.measure(token_ids)
                cells.setdefault((setting, arm.name), []).append(measured)


def _summaries(
    k: Tensor, block_size: int, question: Question, seed: int
) -> dict[bool, BlockSummary]:
    """Summaries for all arms at once, by whether one schedule serves the whole request."""
    parts: dict[bool, set[str]] = {}
    for arm in question.arms:
        parts.setdefault(question.sharing_of(arm) == "request", set()).update(arm.parts)
    return {
        shared: BlockSummary(k, block_size, needed, shared_heads=shared, seed=seed)
        for shared, needed in parts.items()
    }


def _schedules(
    q: Tensor, summaries: dict[bool, BlockSummary], question: Question, budget: Budget
) -> Iterator[tuple[Mixture, Tensor]]:
    for arm in question.arms:
        sharing = question.sharing_of(arm)
        scores = arm.scores(summaries[sharing == "request"], q, sharing, budget)
        yield arm, schedule_tokens(scores, budget).token_ids


def _rows(capture: Capture, question: Question, setting: Setting, cells: Cells) -> list[Row]:
    names = [arm.name for arm in question.arms]
    recalls = torch.tensor(
        [[measured["recall"] for measured in cells[setting, name]] for name in names],
        dtype=torch.float64,
    )
    judged = Judgement(names, recalls.mT, question.seed)
    budgets = [question.budget(setting, position + 1) for position in capture.positions]
    is_scored = any(budget.num_scored_blocks for budget in budgets)
    return [
        _row(capture, question, setting, arm, cells[setting, arm.name], judged, is_scored)
        for arm in question.arms
    ]


class Judgement:
    """Gap closed and verdicts of arms from `recalls [units, arms]`, with intervals."""

    def __init__(self, names: list[str], recalls: Tensor, seed: int = 0) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._means = recalls.mean(dim=0)
        self._draws = resampled_means(recalls, seed=seed)

    def gap_closed(self, name: str) -> dict[str, float | None]:
        """The share of the way from random to the oracle, and its interval."""
        arm, random, oracle = (self._index[n] for n in (name, RANDOM, ORACLE))
        mean = gap_closed(*(float(self._means[i]) for i in (arm, random, oracle)))
        low: float | None = None
        high: float | None = None
        if mean is not None:
            gaps = self._draws[:, oracle] - self._draws[:, random]
            low, high = interval((self._draws[:, arm] - self._draws[:, random]) / gaps)
        return {"gap_closed": mean, "gap_closed_low": low, "gap_closed_high": high}

    def against(self, name: str, baseline: str) -> str:
        """`better than random` and the like: whether recall differs beyond chance."""
        difference = self._draws[:, self._index[name]] - self._draws[:, self._index[baseline]]
        found = verdict(interval(difference))
        return f"{found} {'from' if found == 'cannot tell' else 'than'} {baseline}"


def _row(
    capture: Capture,
    question: Question,
    setting: Setting,
    arm: Mixture,
    measured: list[dict[str, float]],
    judged: Judgement,
    is_scored: bool,
) -> Row:
    baselines = [name for name in (RANDOM, STREAMING) if name != arm.name]
    flags = [judged.against(arm.name, name) for name in baselines] if is_scored else []
    asked = _asked(capture, question, setting, arm)
    metrics: dict[str, float | None] = {"summary_bytes": _summary_bytes(asked, arm)}
    return replace(
        asked,
        flags=tuple(flags or ["no-scored-block"]),
        metrics=metrics | _summed_up(measured) | judged.gap_closed(arm.name),
        samples={"recall": (tuple(round(unit["recall"], 6) for unit in measured),)},
    )


def _asked(capture: Capture, question: Question, setting: Setting, arm: Mixture) -> Row:
    """The row's identity, with nothing measured yet."""
    first = next(iter(capture.layers.values()))
    _, num_kv_heads, kv_len, head_dim = first.k.shape
    return Row(
        workload=capture.name,
        dtype="float32",
        batch=1,
        seq_len=kv_len,
        num_q_heads=first.q.shape[1],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        selected_tokens=setting.selected_tokens,
        block_size=setting.block_size,
        sink_blocks=question.sink_blocks,
        local_blocks=question.local_blocks,
        selector=arm.name,
        sharing=question.sharing_of(arm),
        seed=question.seed,
    )


def _summary_bytes(row: Row, arm: Mixture) -> float:
    """What the arm reads of all blocks of a cache like the row's at every step, in float32."""
    block_size, head_dim = row.block_size or 1, row.head_dim or 0
    num_blocks = -(-(row.seq_len or 0) // block_size)
    floats = arm.floats_per_block(head_dim, block_size)
    return 4.0 * floats * num_blocks * (row.num_kv_heads or 0)


def _summed_up(measured: list[dict[str, float]]) -> dict[str, float]:
    """Means over the units; for recall_worst and output_error_worst, the worst of any unit."""
    return {
        "recall": sum(unit["recall"] for unit in measured) / len(measured),
        "recall_worst": min(unit["recall_worst"] for unit in measured),
        "output_error": sum(unit["output_error"] for unit in measured) / len(measured),
        "output_error_worst": max(unit["output_error_worst"] for unit in measured),
    }
