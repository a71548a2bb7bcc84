"""Candidate rows of a whole sequence: the published rule, causal, for every query block at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topokv.core import check_counts, check_sizes
from topokv.scheduling.ranking import best_first


def candidate_rows(
    scores: Tensor,
    *,
    sink_blocks: int,
    local_blocks: int,
    salience_blocks: int,
    max_candidate_blocks: int,
) -> Tensor:
    """Candidate blocks of every query block, `[num_blocks, max_candidate_blocks]`, int64.

    Row i takes block i itself, then the first `sink_blocks`, then the other local blocks newest
    first (`local_blocks` counts i), then up to `salience_blocks` of the rest by
    `scores [num_blocks]`, ties to the lower block, until it is full. Rows are ascending, padded
    with -1, and hold no block after i.
    """
    rule = _RowRule(sink_blocks, local_blocks, salience_blocks, max_candidate_blocks)
    _check_scores(scores)
    rows = torch.arange(len(scores), device=scores.device)
    best = _prefix_best(scores[sink_blocks:], min(salience_blocks, max_candidate_blocks - 1))
    # Row i ranks the blocks between the sinks and its own locals: none for the first rows.
    salient = torch.nn.functional.pad(best, (0, 0, sink_blocks + rule.local, 0), value=-1)
    return _assemble(rows, salient[: len(scores)], rule)


def candidate_row(
    scores: Tensor,
    *,
    sink_blocks: int,
    local_blocks: int,
    salience_blocks: int,
    max_candidate_blocks: int,
) -> Tensor:
    """The last row of `candidate_rows`, `[max_candidate_blocks]`; no work for the others."""
    rule = _RowRule(sink_blocks, local_blocks, salience_blocks, max_candidate_blocks)
    _check_scores(scores)
    row = torch.tensor([len(scores) - 1], device=scores.device)
    eligible = scores[sink_blocks : max(sink_blocks, len(scores) - rule.local)]
    salient = best_first(eligible, min(salience_blocks, max_candidate_blocks - 1, len(eligible)))
    return _assemble(row, salient.unsqueeze(0), rule).squeeze(0)


@dataclass(frozen=True, slots=True)
class _RowRule:
    """The counts of a candidate row, checked."""

    sink_blocks: int
    local_blocks: int
    salience_blocks: int
    max_candidate_blocks: int

    def __post_init__(self) -> None:
        check_sizes(max_candidate_blocks=self.max_candidate_blocks)
        check_counts(
            sink_blocks=self.sink_blocks,
            local_blocks=self.local_blocks,
            salience_blocks=self.salience_blocks,
        )

    @property
    def local(self) -> int:
        """Local blocks; the query block always stays."""
        return max(1, self.local_blocks)


def _assemble(rows: Tensor, salient: Tensor, rule: _RowRule) -> Tensor:
    """Rows of block ids; `salient` are places counted from after the sinks, -1 for none."""
    last = rows.unsqueeze(-1)
    width = rule.max_candidate_blocks
    sinks = torch.arange(min(rule.sink_blocks, width - 1), device=rows.device)
    sinks = sinks.where(sinks < last, -1)
    # A sink is not listed again among the locals, whether or not it found a place.
    local = last - torch.arange(1, min(rule.local, width), device=rows.device)
    local = local.where(local >= rule.sink_blocks, -1)
    salient = (salient + rule.sink_blocks).where(salient >= 0, -1)
    by_rank = torch.cat((last, sinks, local, salient), dim=-1)
    fits = (by_rank >= 0).cumsum(dim=-1) <= width
    past_all = torch.iinfo(torch.int64).max
    ascending = by_rank.where(fits & (by_rank >= 0), past_all).sort(dim=-1).values[:, :width]
    ascending = ascending.where(ascending != past_all, -1)
    return torch.nn.functional.pad(ascending, (0, width - ascending.shape[-1]), value=-1)


def _prefix_best(scores: Tensor, count: int) -> Tensor:
    """The `count` best places among the first i + 1 of `scores [n]`, for every i: `[n, count]`.

    Best first, ties to the lower place, -1 where there are fewer. A doubling scan over ranks,
    which are distinct: after step s each row holds the lowest ranks of the last 2^s places, so n
    rows take log2(n) merges.
    """
    num_places = len(scores)
    order = torch.cat((best_first(scores), torch.full((1,), -1, device=scores.device)))
    rank = torch.empty(num_places, dtype=torch.int32, device=scores.device)
    rank[order[:-1]] = torch.arange(num_places, dtype=torch.int32, device=scores.device)
    none = num_places
    lowest = torch.nn.functional.pad(rank.unsqueeze(-1), (0, max(0, count - 1)), value=none)
    step = 1
    while step < num_places:
        # Of two ascending rows, one reversed, the smaller of each pair are the lowest of both.
        lower = torch.minimum(lowest[step:], lowest[:-step].flip(-1))
        lowest = torch.cat((lowest[:step], lower.sort(dim=-1).values))
        step *= 2
    return order[lowest[:, :count]]


def _check_scores(scores: Tensor) -> None:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"scores must be [num_blocks], at least one, got {list(scores.shape)}")
