"""Attention by sparse matrices, without a copy: the schedule is one, of query heads by tokens.

Its entries are the logits, one product of a query and a key each (SDDMM), then their softmax by
row; the output is the sum of the value rows that a row names, so weighted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache as once

import torch
from torch import Tensor

from topokv.attention.windows import Places, buffer, token_rows
from topokv.scheduling import CandidateSchedule
from topokv.tensors import KVCache, wide_dtype, without_gradient


class CsrDecode:
    """Read each selected key and value once, where it lies.

    PyTorch samples products in float32 and float64 alone: keys of half precision are copied and
    widened first, values are not. For CPUs; `load` raises ValueError elsewhere.
    """

    def __init__(self) -> None:
        self._near = self._wide = torch.empty(0)
        self._places = Places()

    def load(self, q: Tensor, cache: KVCache, schedule: CandidateSchedule) -> Callable[[], Tensor]:
        if q.device.type != "cpu":
            raise ValueError(
                f"attention 'csr' is for CPUs, got {q.device.type}; use another --attention"
            )
        check_products()
        token_ids, rows = schedule.token_ids, without_gradient(q).reshape(-1, q.shape[3])
        starts = torch.arange(0, len(rows) * token_ids.shape[2] + 1, token_ids.shape[2])
        if wide_dtype(q) == q.dtype:
            k_ids, v_ids = self._places.of_both(token_ids, cache, q.shape[1])
            weigh = _weights_of(rows, token_rows(cache.k), k_ids, starts)
        else:
            v_ids = self._places.of(token_ids, cache.v, q.shape[1])
            weigh = self._weights_of_half(rows, cache.k, token_ids, starts)
        v, shape, first = token_rows(cache.v), q.shape, starts[:-1]

        def attend() -> Tensor:
            output = torch.embedding_bag(v, v_ids, first, per_sample_weights=weigh())
            return output[0].view(shape)

        return attend

    def _weights_of_half(
        self, q: Tensor, k: Tensor, token_ids: Tensor, starts: Tensor
    ) -> Callable[[], Tensor]:
        """As `_weights_of`, over a copy of the keys, which query heads share as they do schedules.

        `k` is the cache's, `token_ids` `[batch, groups, width]`.
        """
        batch, heads = len(token_ids), max(token_ids.shape[1], k.shape[1])
        ids, queries, dtype = self._places.of(token_ids, k, heads), q.float(), q.dtype
        shape = (len(ids), k.shape[3])
        self._near, self._wide = buffer(self._near, k, shape), buffer(self._wide, queries, shape)
        keys, near, wide = token_rows(k), self._near, self._wide
        copies = torch.arange(len(ids)).view(batch * heads, -1)
        columns = copies.repeat_interleave(len(q) // len(copies), dim=0).flatten()
        weigh = _weights_of(queries, wide, columns, starts)

        def weigh_half() -> Tensor:
            wide.copy_(torch.index_select(keys, 0, ids, out=near))
            return weigh().to(dtype)

        return weigh_half


def _weights_of(q: Tensor, k: Tensor, columns: Tensor, starts: Tensor) -> Callable[[], Tensor]:
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
