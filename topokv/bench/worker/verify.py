"""Correctness before time: sparse attention against dense attention under the same mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from topokv.tensors import KVCache, group_queries


def mismatch(output: Tensor, q: Tensor, cache: KVCache, token_ids: Tensor) -> str | None:
    """Why `output` is not the attention over `token_ids`; None where it is.

    The reference is dense attention in float64 under the schedule's boolean mask, KV head by KV
    head. The error that is allowed is four times that of the same masked attention in the cache's
    own type, and four units in the last place of the largest output.
    """
    grouped = group_queries(q, cache.num_kv_heads)
    result = group_queries(output, cache.num_kv_heads)
    for request in range(cache.batch):
        for head in range(cache.num_kv_heads):
            for rows, ids in _schedules(token_ids[request], head, cache.num_kv_heads, grouped):
                queries = grouped[request, head, rows]
                found = result[request, head, rows].double()
                wrong = _beyond(found, queries, cache, (request, head), ids)
                if wrong is not None:
                    return f"request {request}, kv head {head}: {wrong}"
    return None


def _schedules(ids: Tensor, head: int, num_kv_heads: int, q: Tensor) -> list[tuple[slice, Tensor]]:
    """The query rows of a KV head that share a schedule, and its ids: `ids` is [groups, width]."""
    group = q.shape[2]
    if ids.shape[0] == 1:
        return [(slice(None), ids[0])]
    if ids.shape[0] == num_kv_heads:
        return [(slice(None), ids[head])]
    return [(slice(i, i + 1), ids[head * group + i]) for i in range(group)]


def _beyond(
    found: Tensor, queries: Tensor, cache: KVCache, place: tuple[int, int], ids: Tensor
) -> str | None:
    mask = torch.zeros(cache.kv_len, dtype=torch.bool, device=ids.device)
    mask[ids] = True
    if int(mask.sum()) != ids.numel():
        return f"{ids.numel()} token ids are not distinct"
    # What the mask leaves out has weight 0, so only what it lets in is converted.
    k, v = cache.k[place][mask], cache.v[place][mask]
    exact = _attend(queries.double(), k.double(), v.double())
    plain = scaled_dot_product_attention(queries[None, None], k[None, None], v[None, None])
    own_error = float((plain[0, 0].double() - exact).abs().max())
    error = float((found - exact).abs().max())
    allowed = 4 * own_error + 4 * torch.finfo(cache.dtype).eps * float(exact.abs().max())
    if error <= allowed:
        return None
    return f"sparse differs from masked dense by {error:.3g}, allowed {allowed:.3g}"


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
    return weights @ v
