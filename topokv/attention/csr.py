"""Attention by sparse matrices, without a copy: the schedule is one, of query heads by tokens.

Its entries are the logits, one product of a query and a key each (SDDMM), then their softmax by
row; the output is the sum of the value rows that a row names, so weighted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache as once
from typing import TypeAlias

import torch
from torch import Tensor

from topokv.attention.windows import head_starts, token_rows, token_step
from topokv.cache import KVCache, without_gradient
from topokv.schedule import CandidateSchedule
from topokv.summaries import wide_dtype

Attend: TypeAlias = Callable[[], Tensor]


class CsrDecode:
    """Read each selected key and value once, where it lies.

    PyTorch samples products in float32 and float64 alone: keys of half precision are copied and
    widened first, values are not. For CPUs; `load` raises ValueError elsewhere.
    """

    def __init__(self) -> None:
        self._near = self._wide = torch.empty(0)

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> Attend:
        if q.device.type != "cpu":
            raise ValueError(
                f"attention 'csr' is for CPUs, got {q.device.type}; use another --attention"
            )
        check_products()
        token_ids, rows = schedule.token_ids, without_gradient(q).reshape(-1, q.shape[3])
        starts = torch.arange(0, len(rows) * token_ids.shape[2] + 1, token_ids.shape[2])
        if wide_dtype(q) == q.dtype:
            k_ids = _row_ids(token_ids, cache.k, q.shape[1]).flatten()
            weigh = _weights_of(rows, token_rows(cache.k), k_ids, starts)
        else:
            weigh = self._weights_of_half(rows, cache.k, token_ids, starts)
        v, shape, first = token_rows(cache.v), q.shape, starts[:-1]
        v_ids = _row_ids(token_ids, cache.v, q.shape[1]).flatten()

        def attend() -> Tensor:
            output = torch.embedding_bag(v, v_ids, first, per_sample_weights=weigh())
            return output[0].view(shape)

        return attend

    def _weights_of_half(self, q: Tensor, k: Tensor, token_ids: Tensor, starts: Tensor) -> Attend:
        """As `_weights_of`, over a copy of the keys, which query heads share as they do schedules.

        `k` is the cache's, `token_ids` `[batch, groups, width]`.
        """
        batch, heads = len(token_ids), max(token_ids.shape[1], k.shape[1])
        ids, width = _row_ids(token_ids, k, heads).flatten(), token_ids.shape[2]
        shape, dtype = (len(ids), k.shape[3]), q.dtype
        if self._near.shape != shape or self._near.dtype != k.dtype:
            self._near, self._wide = k.new_empty(shape), k.new_empty(shape, dtype=torch.float32)
        keys, near, wide = token_rows(k), self._near, self._wide
        copies = torch.arange(len(ids)).view(batch * heads, width)
        columns = copies.repeat_interleave(len(q) // len(copies), dim=0).flatten()
        weigh = _weights_of(q.float(), wide, columns, starts)

        def weigh_half() -> Tensor:
            wide.copy_(torch.index_select(keys, 0, ids, out=near))
            return weigh().to(dtype)

        return weigh_half


def _weights_of(q: Tensor, k: Tensor, columns: Tensor, starts: Tensor) -> Attend:
    """A call that gives the softmax of each row's entries, flat.

    `q` is `[rows, head_dim]`, `k` `[num_rows, head_dim]`; a row's `columns` begin at its start.
    """
    matrix = torch.sparse_csr_tensor(
        starts, columns, q.new_zeros(len(columns)), (len(q), len(k)), check_invariants=False
    )
    entries, keys, scale = matrix.values(), k.t(), 1 / math.sqrt(q.shape[1])

    def weigh() -> Tensor:
        # What was there is multiplied by beta all the same, and 0 times infinity is no number.
        entries.zero_()
        torch.sparse.sampled_addmm(matrix, q, keys, beta=0, alpha=scale, out=matrix)
        return entries.view(len(q), -1).softmax(dim=-1).view(-1)

    return weigh


def _row_ids(token_ids: Tensor, tensor: Tensor, heads: int) -> Tensor:
    """Where in `token_rows` each head's tokens lie, ascending, `[batch, heads, width]`.

    `token_ids` is `[batch, groups, width]`; heads are a multiple of groups and of the KV heads.
    """
    each = heads // token_ids.shape[1]
    ids = token_ids.repeat_interleave(each, dim=1) if token_ids.shape[1] > 1 else token_ids
    return torch.add(head_starts(tensor, heads), ids, alpha=token_step(tensor))


@once
def check_products() -> None:
    """Raise ValueError unless this build of torch samples products of a sparse matrix.

    The first sparse matrix of a process warns that they are in beta; that is this one.
    """
    one = torch.ones(1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.sparse.sampled_addmm(one.to_sparse_csr(), one, one)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"attention 'csr' needs sparse products, which this torch lacks: {reason}; "
            "use another --attention"
        ) from error
