"""Workload: the query and the cache that every arm of a benchmark reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topokv.tensors import KVCache, check_heads, check_query

if TYPE_CHECKING:
    from topokv.inputs.capture_file import Capture


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A query `[batch, num_q_heads, 1, head_dim]` of the cache's first `kv_len` tokens."""

    q: Tensor
    kv_len: int


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A cache and the queries that attend it; the last one stands at the newest token.

    `is_real` tells a captured model's cache from random numbers: on random keys every selector
    keeps about the budget's share of the attention, so quality is measured on real caches alone.
    """

    name: str
    cache: KVCache
    queries: tuple[Query, ...]
    is_real: bool
    layer: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for query in self.queries:
            check_query(query.q, self.cache.k)
        if not self.queries or self.queries[-1].kv_len != self.cache.kv_len:
            raise ValueError(
                f"the last query must attend all {self.cache.kv_len} tokens of the cache"
            )

    @property
    def q(self) -> Tensor:
        """The newest token's query, `[batch, num_q_heads, 1, head_dim]`: the one that is timed."""
        return self.queries[-1].q


def gaussian(
    *,
    batch: int = 1,
    num_q_heads: int,
    num_kv_heads: int,
    kv_len: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Workload:
    """Standard normal q, K and V, the same for one seed on one kind of device.

    Drawn in `dtype` on the device itself by a generator of its own, one tensor at a time, so that
    the peak is what the workload holds and the global random state stays as it was.
    """
    check_heads(num_q_heads, num_kv_heads)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(heads: int, tokens: int) -> Tensor:
        size = (batch, heads, tokens, head_dim)
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)

    cache = KVCache(draw(num_kv_heads, kv_len), draw(num_kv_heads, kv_len))
    query = Query(draw(num_q_heads, 1), kv_len)
    return Workload("gaussian", cache, (query,), is_real=False, seed=seed)


def captured(
    capture: Capture,
    layer: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Workload:
    """One layer of a captured model's cache, cut at the newest captured query's token.

    Raises ValueError where the capture lacks the layer.
    """
    q, k, v = (t.to(device=device, dtype=dtype) for t in capture.layer(layer))
    kv_len = int(capture.positions[-1]) + 1
    cache = KVCache(k[:, :, :kv_len].contiguous(), v[:, :, :kv_len].contiguous())
    queries = tuple(
        Query(q[:, :, i : i + 1], int(position) + 1) for i, position in enumerate(capture.positions)
    )
    return Workload(capture.name, cache, queries, is_real=True, layer=layer)
