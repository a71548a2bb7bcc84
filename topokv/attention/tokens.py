"""Decode attention over token ids that a caller names, each of them checked."""

from __future__ import annotations

import torch
from torch import Tensor

from topokv.attention.windows import GatherDecode
from topokv.tensors import KVCache, check_query


def sparse_decode(q: Tensor, k: Tensor, v: Tensor, token_ids: Tensor) -> Tensor:
    """Attention of one token over selected tokens, `[batch, num_q_heads, 1, head_dim]`.

    `token_ids` is `[batch, groups, width]`, groups 1, num_kv_heads or num_q_heads; a rank of 2 or
    1 is read as one group, or one schedule for all. -1 is padding; a row of padding alone is an
    error.

    Raises TypeError for ids that are not whole numbers; ValueError for ids that are empty, of
    another rank, twice in a row, or out of range.
    """
    cache = KVCache(k, v)
    check_query(q, k)
    ids = check_token_ids(token_ids, cache, q.shape[1])
    mask = None
    if bool((ids < 0).any()):
        mask = _head_mask(ids >= 0, q.shape[1])
    return GatherDecode().load_tokens(q, cache, ids.clamp(min=0), mask)()


def check_token_ids(token_ids: Tensor, cache: KVCache, num_q_heads: int) -> Tensor:
    """The ids as `[batch, groups, width]`, int64; the errors are those of `sparse_decode`."""
    if token_ids.is_floating_point() or token_ids.is_complex() or token_ids.dtype == torch.bool:
        raise TypeError(f"token_ids must be whole numbers, got {token_ids.dtype}")
    if not 1 <= token_ids.ndim <= 3 or token_ids.numel() == 0:
        shape = list(token_ids.shape)
        raise ValueError(f"token_ids must be [batch, groups, width], none 0, got {shape}")
    ids = token_ids.long()
    ids = ids.expand(cache.batch, 1, -1) if ids.ndim == 1 else ids
    ids = ids.unsqueeze(1) if ids.ndim == 2 else ids
    groups = (1, cache.num_kv_heads, num_q_heads)
    if ids.shape[0] != cache.batch or ids.shape[1] not in groups:
        raise ValueError(
            f"token_ids must have batch {cache.batch} and 1, {groups[1]} or {groups[2]} groups, "
            f"got {list(token_ids.shape)}"
        )
    _check_ids(ids, cache.kv_len)
    return ids


def _check_ids(ids: Tensor, kv_len: int) -> None:
    bad = ids[(ids < -1) | (ids >= kv_len)]
    if bad.numel():
        raise ValueError(f"token_ids must be -1 or from 0 to {kv_len - 1}, got {int(bad[0])}")
    ordered = ids.sort(dim=-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if bool(twice.any()):
        first = int(ordered[..., 1:][twice][0])
        raise ValueError(f"token_ids must be distinct in each row, got {first} twice")
    if bool((ids < 0).all(dim=-1).any()):
        raise ValueError("token_ids must name at least one token in each row, got a row of padding")


def _head_mask(there: Tensor, num_q_heads: int) -> Tensor:
    """A boolean `[batch, num_q_heads, 1, width]` mask from one of each schedule's slots."""
    return there.repeat_interleave(num_q_heads // there.shape[1], dim=1).unsqueeze(2)
