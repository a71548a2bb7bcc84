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

from topokv.choices import check_choice

# So few scores are sorted as fast as they are turned into keys for topk.
_SORTED_WHOLE = 4096

# How many schedules there are: one for a request, one for each KV head, one for each query head.
SHARINGS = ("request", "kv-head", "q-head")


@dataclass(frozen=True, slots=True)
class Budget:
    """How a budget of tokens is divided.

    The first `sink_tokens` tokens and those from `first_local_token` on are attended whatever the
    scores; `scored_tokens` more come from blocks `first_scored_block` to `end_scored_block` - 1.
    """

    kv_len: int
    block_size: int
    sink_tokens: int
    first_local_token: int
    scored_tokens: int
    first_scored_block: int
    end_scored_block: int

    @property
    def selected_tokens(self) -> int:
        return self.sink_tokens + self.scored_tokens + self.kv_len - self.first_local_token

    @property
    def num_scored_blocks(self) -> int:
        """Blocks that the scores choose; at 0 every selector attends the same tokens."""
        return -(-self.scored_tokens // self.block_size)


def token_budget(
    *, kv_len: int, block_size: int, selected_tokens: int, sink_blocks: int, local_blocks: int
) -> Budget:
    """How `selected_tokens` of `kv_len` tokens are divided into sinks, locals and scored blocks.

    With m = ceil(selected_tokens / block_size): min(sink_blocks, m - 1) sinks, then
    min(local_blocks, m - sinks) locals but at least one, and one more where the final block is
    partial, so that a partial block never costs recent context. Filled in the order locals newest
    first, sinks from 0 up, scored blocks.

    Raises ValueError for sizes below 1, negative counts and a budget above `kv_len`.
    """
    _check_sizes(kv_len=kv_len, block_size=block_size, selected_tokens=selected_tokens)
    _check_counts(sink_blocks=sink_blocks, local_blocks=local_blocks)
    if selected_tokens > kv_len:
        raise ValueError(f"selected_tokens {selected_tokens} exceeds kv_len {kv_len}")
    slots = -(-selected_tokens // block_size)
    sinks = min(sink_blocks, slots - 1)
    local = max(1, min(local_blocks, slots - sinks)) + (1 if kv_len % block_size else 0)
    first_local = max(0, -(-kv_len // block_size) - local)
    sinks = min(sinks, first_local)
    local_tokens = min(selected_tokens, kv_len - first_local * block_size)
    sink_tokens = min(selected_tokens - local_tokens, sinks * block_size)
    return Budget(
        kv_len=kv_len,
        block_size=block_size,
        sink_tokens=sink_tokens,
        first_local_token=kv_len - local_tokens,
        scored_tokens=selected_tokens - local_tokens - sink_tokens,
        first_scored_block=sinks,
        end_scored_block=first_local,
    )


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
    for ranking, quota in zip(scores, _quotas(shares, budget.num_scored_blocks), strict=True):
        order = _best_first(ranking[..., first:end])
        free = eligible.gather(-1, order).isneginf()
        place = free.cumsum(dim=-1)
        taking = free & (place <= quota)
        rank = -(num_taken + place).to(mixed.dtype)
        eligible.scatter_(-1, order, torch.where(taking, rank, eligible.gather(-1, order)))
        num_taken += quota
    return mixed


def _quotas(shares: Sequence[float], total: int) -> list[int]:
    """`total` divided as `shares`, which add up to 1; leftovers go to the largest remainders."""
    quotas = [int(total * part + 1e-9) for part in shares]
    remainders = [quota - total * part for quota, part in zip(quotas, shares, strict=True)]
    for index in sorted(range(len(shares)), key=remainders.__getitem__)[: total - sum(quotas)]:
        quotas[index] += 1
    return quotas


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
    blocks = _best_first(eligible, budget.num_scored_blocks) + budget.first_scored_block
    return CandidateSchedule(blocks, budget)


def _best_first(scores: Tensor, count: int | None = None) -> Tensor:
    """Places of the `count` highest (or all) `scores` along the last size, best first.

    Ties go to the lower place; NaN counts as -inf.
    """
    num_places = scores.shape[-1]
    count = num_places if count is None else count
    if scores.device.type == "cpu" and count < num_places:
        values, places = scores.topk(count + 1)
        # Strictly falling values hold neither a tie to break nor NaN. A GPU would wait for this.
        if bool((values[..., 1:] < values[..., :-1]).all()):
            return places[..., :count]
    ranked = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    most = 4 * count > num_places or scores.numel() <= _SORTED_WHOLE
    if most or scores.dtype == torch.float64:
        return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return _tie_free(ranked).topk(count).indices


def _tie_free(scores: Tensor) -> Tensor:
    """Distinct int64 keys along the last size, in the order of `scores`, then of lower place.

    topk, unlike a stable sort, need not rank more than it returns, but it breaks ties anyhow.
    """
    # Adding 0 makes -0.0 and 0.0 one; a negative float's bits fall as it rises, so they are turned.
    bits = (scores.float() + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    place = torch.arange(scores.shape[-1], device=scores.device)
    return (ordered.long() << 32) - place


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
    _check_sizes(block_size=block_size, kv_len=kv_len)
    if block_ids.is_floating_point() or block_ids.is_complex() or block_ids.dtype == torch.bool:
        raise TypeError(f"block_ids must be whole numbers, got {block_ids.dtype}")
    num_blocks = -(-kv_len // block_size)
    if block_ids.numel() and not -1 <= int(block_ids.min()) <= int(block_ids.max()) < num_blocks:
        bad = int(block_ids.min()) if int(block_ids.min()) < -1 else int(block_ids.max())
        raise ValueError(f"block_ids must be -1 or from 0 to {num_blocks - 1}, got {bad}")
    tokens = block_ids.long()[..., None] * block_size
    tokens = tokens + torch.arange(block_size, device=block_ids.device)
    return tokens.where((block_ids[..., None] >= 0) & (tokens < kv_len), -1).flatten(-2)


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
    salient = _best_first(eligible, min(salience_blocks, max_candidate_blocks - 1, len(eligible)))
    return _assemble(row, salient.unsqueeze(0), rule).squeeze(0)


@dataclass(frozen=True, slots=True)
class _RowRule:
    """The counts of a candidate row, checked."""

    sink_blocks: int
    local_blocks: int
    salience_blocks: int
    max_candidate_blocks: int

    def __post_init__(self) -> None:
        _check_sizes(max_candidate_blocks=self.max_candidate_blocks)
        _check_counts(
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
    order = torch.cat((_best_first(scores), torch.full((1,), -1, device=scores.device)))
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


def _check_sizes(**sizes: int) -> None:
    _check_whole(1, sizes)


def _check_counts(**counts: int) -> None:
    _check_whole(0, counts)


def _check_whole(least: int, numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} must be a whole number, got {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
