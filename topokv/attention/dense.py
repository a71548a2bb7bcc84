"""Dense decode attention by scaled_dot_product_attention, what every sparse arm is held against.

Query heads that share a KV head are folded into the query length, which is free (a view) and keeps
the fused kernels: `enable_gqa` falls back to the math path in float32. `is_causal` stays False,
since one decoded token attends all that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from topokv.tensors import KVCache, check_query, group_queries

Attend: TypeAlias = Callable[[], Tensor]


def dense_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one token over the whole cache, `[batch, num_q_heads, 1, head_dim]`.

    `q` is `[batch, num_q_heads, 1, head_dim]`, `k` and `v`
    `[batch, num_kv_heads, kv_len, head_dim]`. Raises ValueError or TypeError for tensors that do
    not fit together.
    """
    return prepare_dense(q, KVCache(k, v))()


def prepare_dense(q: Tensor, cache: KVCache) -> Attend:
    """A call that attends the whole cache, `[batch, num_q_heads, 1, head_dim]`."""
    check_query(q, cache.k)
    grouped = group_queries(q, cache.num_kv_heads)

    def attend() -> Tensor:
        return scaled_dot_product_attention(grouped, cache.k, cache.v).reshape(q.shape)

    return attend
