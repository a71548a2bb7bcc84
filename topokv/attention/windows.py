"""Attention over a copy: runs of tokens picked into buffers made once, then SDPA over those."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from topokv.scheduling import Budget, CandidateSchedule
from topokv.tensors import KVCache, group_queries


class GatherDecode:
    """As published: copy the selected tokens' K and V one by one, then attend the copy.

    `load` takes a step's query, cache and schedule; calling it gathers and attends. One object
    serves all steps, so that no memory is asked for while time is taken.
    """

    def __init__(self) -> None:
        self._k = self._v = torch.empty(0)
        self._mask: Tensor | None = None
        self._places = Places()

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> GatherDecode:
        return self.load_tokens(q, cache, schedule.token_ids)

    def load_tokens(
        self, q: Tensor, cache: KVCache, token_ids: Tensor, mask: Tensor | None = None
    ) -> GatherDecode:
        """The same for `token_ids [batch, groups, width]`, all of which exist.

        `mask [batch, num_q_heads, 1, width]` is False where a token is not to be attended.
        """
        self._load_windows(q, cache, token_ids, size=1, first=0, width=token_ids.shape[-1])
        self._mask = mask if mask is None else mask.reshape(*self._q.shape[:3], -1)
        return self

    def _load_windows(
        self, q: Tensor, cache: KVCache, starts: Tensor, *, size: int, first: int, width: int
    ) -> None:
        """Attend `width` tokens from the `first` on of the windows that begin at `starts`."""
        heads = max(starts.shape[1], cache.num_kv_heads)
        shape = (cache.batch, heads, starts.shape[-1] * size, cache.head_dim)
        self._k = buffer(self._k, cache.k, shape)
        self._v = buffer(self._v, cache.v, shape)
        k_ids, v_ids = self._places.of_both(starts, cache, heads)
        self._copies = (
            (_windows(cache.k, size), k_ids, _by_window(self._k, size)),
            (_windows(cache.v, size), v_ids, _by_window(self._v, size)),
        )
        seen = slice(first, first + width)
        self._seen = self._k[:, :, seen], self._v[:, :, seen]
        self._q = group_queries(q, heads)
        self._mask = None
        self._shape = q.shape

    def __call__(self) -> Tensor:
        for windows, ids, into in self._copies:
            torch.index_select(windows, 0, ids, out=into)
        output = scaled_dot_product_attention(self._q, *self._seen, self._mask)
        return output.reshape(self._shape)


class BlockDecode(GatherDecode):
    """Copy whole blocks, which takes half the time of copying tokens, then attend the copy.

    Locals come first, counted from the cache's end, then sinks, then scored blocks, best first. So
    what is copied in excess lies at the two ends of the buffer, which is cut there: no mask.
    """

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> GatherDecode:
        budget = schedule.budget
        first, excess = _first_window(budget)
        if first < 0:
            # The windows of so short a cache would begin before it.
            return self.load_tokens(q, cache, schedule.token_ids)
        starts = _window_starts(schedule, first)
        self._load_windows(
            q,
            cache,
            starts,
            size=budget.block_size,
            first=excess,
            width=budget.selected_tokens,
        )
        return self


def _first_window(budget: Budget) -> tuple[int, int]:
    """Where the local tokens' first window begins, and how many tokens early that is."""
    excess = -(budget.kv_len - budget.first_local_token) % budget.block_size
    return budget.first_local_token - excess, excess


def _window_starts(schedule: CandidateSchedule, first: int) -> Tensor:
    """Tokens at which windows begin, `[batch, groups, num_windows]`."""
    budget, blocks = schedule.budget, schedule.scored_blocks
    size = budget.block_size
    local = torch.arange(first, budget.kv_len, size, device=blocks.device)
    sinks = torch.arange(0, budget.sink_tokens, size, device=blocks.device)
    always = torch.cat((local, sinks)).expand(*blocks.shape[:-1], -1)
    return torch.cat((always, blocks * size), dim=-1)


def buffer(current: Tensor, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`current` where it fits, else a new one."""
    fits = (current.shape, current.dtype, current.device) == (shape, like.dtype, like.device)
    return current if fits else like.new_empty(shape)


def _by_window(copy: Tensor, size: int) -> Tensor:
    return copy.view(-1, size, copy.shape[-1])


def _unit(tensor: Tensor) -> int:
    """The step, in elements, that every token of `tensor` is a whole number of away."""
    return math.gcd(*tensor.stride()[:3]) or 1


def _windows(tensor: Tensor, size: int) -> Tensor:
    """All runs of `size` tokens, overlapping, `[num_starts, size, head_dim]`, a view.

    Works for any cache whose keys lie whole in memory, a slice of a larger one included, where
    a reshape to rows would copy all of it.
    """
    unit, stride = _unit(tensor), tensor.stride()
    last = sum((n - 1) * step for n, step in zip(tensor.shape[:2], stride[:2], strict=True))
    last += (tensor.shape[2] - size) * stride[2]
    shape = (last // unit + 1, size, tensor.shape[3])
    return tensor.as_strided(shape, (unit, stride[2], stride[3]))


def token_rows(tensor: Tensor) -> Tensor:
    """All that lies a whole number of tokens from the first, `[num_rows, head_dim]`, a view."""
    return _windows(tensor, 1).squeeze(1)


class Places:
    """Where in `token_rows`, or among windows, the tokens of each head lie.

    Where a head begins does not change from step to step, and is kept.
    """

    def __init__(self) -> None:
        self._head_starts: dict[tuple[int, ...], Tensor] = {}

    def of(self, tokens: Tensor, tensor: Tensor, heads: int) -> Tensor:
        """Flat, head by head; `tokens` is `[batch, groups, n]`, heads a multiple of groups."""
        layout = (heads, *tensor.shape[:2], *tensor.stride())
        if layout not in self._head_starts:
            self._head_starts[layout] = _head_starts(tensor, heads)
        if 1 < tokens.shape[1] < heads:
            tokens = tokens.repeat_interleave(heads // tokens.shape[1], dim=1)
        step = tensor.stride(2) // _unit(tensor)
        return torch.add(self._head_starts[layout], tokens, alpha=step).flatten()

    def of_both(self, tokens: Tensor, cache: KVCache, heads: int) -> tuple[Tensor, Tensor]:
        """Those in K and in V, which are one where both lie alike."""
        in_k = self.of(tokens, cache.k, heads)
        same = cache.k.stride() == cache.v.stride()
        return in_k, in_k if same else self.of(tokens, cache.v, heads)


def _head_starts(tensor: Tensor, heads: int) -> Tensor:
    """Where each head's first token is, `[batch, heads, 1]`."""
    unit, (batch_step, head_step) = _unit(tensor), tensor.stride()[:2]
    kv_head = torch.arange(heads, device=tensor.device) // (heads // tensor.shape[1])
    request = torch.arange(tensor.shape[0], device=tensor.device).unsqueeze(-1)
    return (request * (batch_step // unit) + kv_head * (head_step // unit)).unsqueeze(-1)
