"""The schedule: which tokens a decode step attends, given a score for each block.

One place applies sinks, local window, budget and cut for every selector, so that all selectors are
compared on the same number of tokens. Scores come from outside; this file knows no selector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from topokv.core import SHARINGS, check_choice, check_sizes
from topokv.scheduling.budget import Budget, quotas
from topokv.scheduling.ranking import best_first


@dataclass(frozen=True, eq=False)
class CandidateSchedule:
    """The blocks of one decode step, and their tokens once asked for.

    `scored_blocks` is `[batch, groups, num_scored_blocks]`, int64, best first: all but the last are
    attended whole, the last as far as the budget goes. groups is 1, num_kv_heads or num_q_heads.
    """

    scored_blocks: Tensor
    budget: Budget

    @cached_property
    def token_ids(self) -> Tensor:
        """`[batch, groups, selected_tokens]`, int64, ascending and distinct."""
        return _token_ids(self.scored_blocks, self.budget)


def share(scores: Tensor, sharing: str, num_kv_heads: int, group: int) -> Tensor:
    """Scores of each schedule, `[batch, groups, num_blocks]`.

    `scores` is `[batch, num_kv_heads or 1, group or 1, num_blocks]`, 1 where a score is the same
    for all. Query heads that share a schedule have their scores summed.
    """
    check_sharing(sharing)
    if sharing == "request":
        scores = scores.flatten(1, 2)
        return scores if scores.shape[1] == 1 else scores.sum(dim=1, keepdim=True)
    if sharing == "kv-head":
        summed = scores.squeeze(2) if scores.shape[2] == 1 else scores.sum(dim=2)
        return summed.expand(-1, num_kv_heads, -1)
    return scores.expand(-1, num_kv_heads, group, -1).flatten(1, 2)


def check_sharing(sharing: str) -> None:
    """Raise ValueError, with the valid ones, for what is not a sharing."""
    check_choice("sharing", sharing, SHARINGS)


def mix(scores: Sequence[Tensor], shares: Sequence[float], budget: Budget) -> Tensor:
    """Scores by which several rankings fill `budget` together, `[batch, groups, num_blocks]`.

    Each of `scores [batch, groups, num_blocks]` in turn takes its share of the scored blocks, its
    best ones that are not taken yet: where rankings agree, the later one goes further down its own.
    Blocks rank by the order in which they are taken; the rest are -inf.
    """
    first, end = budget.first_scored_block, budget.end_scored_block
    mixed = scores[0].new_full(scores[0].shape, -torch.inf)
    eligible = mixed[..., first:end]
    num_taken = 0
    for ranking, quota in zip(scores, quotas(shares, budget.num_scored_blocks), strict=True):
        order = best_first(ranking[..., first:end])
        free = eligible.gather(-1, order).isneginf()
        place = free.cumsum(dim=-1)
        taking = free & (place <= quota)
        rank = -(num_taken + place).to(mixed.dtype)
        eligible.scatter_(-1, order, torch.where(taking, rank, eligible.gather(-1, order)))
        num_taken += quota
    return mixed


def schedule_tokens(scores: Tensor, budget: Budget) -> CandidateSchedule:
    """The schedule that fills `budget` by `scores [batch, groups, num_blocks]`.

    Ties go to the lower block; NaN counts as the lowest score. Raises ValueError where scores are
    not one for each block of the budget's cache.
    """
    num_blocks = -(-budget.kv_len // budget.block_size)
    if scores.ndim != 3 or scores.shape[-1] != num_blocks:
        shape = list(scores.shape)
        raise ValueError(f"scores must be [batch, groups, {num_blocks}], got {shape}")
    eligible = scores[..., budget.first_scored_block : budget.end_scored_block]
    blocks = best_first(eligible, budget.num_scored_blocks) + budget.first_scored_block
    return CandidateSchedule(blocks, budget)


def _token_ids(scored_blocks: Tensor, budget: Budget) -> Tensor:
    num_local = budget.kv_len - budget.first_local_token
    count = max(budget.sink_tokens, num_local, budget.block_size, budget.scored_tokens)
    places = torch.arange(count, device=scored_blocks.device)
    batch_groups = scored_blocks.shape[:-1]
    sinks = places[: budget.sink_tokens].expand(*batch_groups, -1)
    local = (places[:num_local] + budget.first_local_token).expand(*batch_groups, -1)
    return torch.cat((sinks, _scored_token_ids(scored_blocks, budget, places), local), dim=-1)


def _scored_token_ids(scored_blocks: Tensor, budget: Budget, places: Tensor) -> Tensor:
    """Token ids of the scored blocks, ascending; the block ranked last may be cut short.

    `places` counts from 0, as far as a block and the scored tokens go.
    """
    size, width = budget.block_size, scored_blocks.shape[-1]
    spare = width * size - budget.scored_tokens
    # Of distinct numbers, topk is the cheaper sort.
    ascending, ranks = scored_blocks.topk(width, largest=False)
    if spare == 0:
        return torch.add(places[:size], ascending.unsqueeze(-1), alpha=size).flatten(-2)
    cut_place = (ranks == width - 1).int().argmax(dim=-1, keepdim=True)
    # Slots after the cut block's end skip the tokens that it had to leave out.
    slot = places[: budget.scored_tokens]
    slot = slot + spare * (slot >= (cut_place + 1) * size - spare)
    return ascending.gather(-1, slot // size) * size + slot % size


def expand_blocks(block_ids: Tensor, block_size: int, kv_len: int) -> Tensor:
    """The token ids of blocks, `[..., width * block_size]`, from block ids `[..., width]`.

    -1 stands where a block id is -1 and where the last block has no token. Raises ValueError for a
    block id beyond the cache, TypeError for ids that are not whole numbers.
    """
    check_sizes(block_size=block_size, kv_len=kv_len)
    if block_ids.is_floating_point() or block_ids.is_complex() or block_ids.dtype == torch.bool:
        raise TypeError(f"block_ids must be whole numbers, got {block_ids.dtype}")
    num_blocks = -(-kv_len // block_size)
    if block_ids.numel() and not -1 <= int(block_ids.min()) <= int(block_ids.max()) < num_blocks:
        bad = int(block_ids.min()) if int(block_ids.min()) < -1 else int(block_ids.max())
        raise ValueError(f"block_ids must be -1 or from 0 to {num_blocks - 1}, got {bad}")
    tokens = block_ids.long()[..., None] * block_size
    tokens = tokens + torch.arange(block_size, device=block_ids.device)
    return tokens.where((block_ids[..., None] >= 0) & (tokens < kv_len), -1).flatten(-2)
