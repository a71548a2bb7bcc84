"""What a selection keeps of attention: recall and output error against float64 dense attention.

And how sure one may be of it: a captured query (one position of one layer) is the unit of chance,
and intervals come from drawing the units again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from topokv.attention import check_token_ids
from topokv.tensors import KVCache, check_query, group_queries

DRAWS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """A sparse decode beside the dense one, float64.

    `weights [batch, num_q_heads, width]` are the dense attention weights of the selected tokens, 0
    where the schedule is padded; `output` and `dense_output` are `[batch, num_q_heads, head_dim]`.
    """

    weights: Tensor
    output: Tensor
    dense_output: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DenseReference:
    """Dense attention of one query in float64, worked out once for all the schedules it judges.

    `weights` is `[batch, num_q_heads, kv_len]`, `output` `[batch, num_q_heads, head_dim]`.
    """

    cache: KVCache
    weights: Tensor
    output: Tensor

    @classmethod
    def of(cls, q: Tensor, cache: KVCache) -> DenseReference:
        """The reference for `q [batch, num_q_heads, 1, head_dim]` over all of `cache`."""
        check_query(q, cache.k)
        double = KVCache(cache.k.double(), cache.v.double())
        queries = group_queries(q.double(), cache.num_kv_heads) / math.sqrt(cache.head_dim)
        weights = (queries @ double.k.mT).softmax(dim=-1)
        output = weights @ double.v
        return cls(double, weights.flatten(1, 2), output.flatten(1, 2))

    def attend(self, token_ids: Tensor) -> Attended:
        """What attending `token_ids [batch, groups, width]` alone keeps; -1 is padding."""
        num_q_heads = self.weights.shape[1]
        ids = check_token_ids(token_ids, self.cache, num_q_heads)
        heads = max(ids.shape[1], self.cache.num_kv_heads)
        rows = ids.clamp(min=0).repeat_interleave(heads // ids.shape[1], dim=1)
        group = num_q_heads // heads
        weights = self.weights.gather(-1, rows.repeat_interleave(group, dim=1))
        weights = weights * (ids >= 0).repeat_interleave(num_q_heads // ids.shape[1], dim=1)
        kept = weights.reshape(weights.shape[0], heads, group, -1)
        output = (kept @ self._values(rows)).flatten(1, 2) / weights.sum(dim=-1, keepdim=True)
        return Attended(weights, output, self.output)

    def measure(self, token_ids: Tensor) -> dict[str, float]:
        """Each of METRICS for `token_ids`: its mean over batch and query heads, and its worst."""
        attended = self.attend(token_ids)
        measured = {}
        for metric in METRICS:
            per_head = metric.per_head(attended)
            measured[metric.name] = float(per_head.mean())
            measured[f"{metric.name}_worst"] = float(metric.worst(per_head))
        return measured

    def _values(self, rows: Tensor) -> Tensor:
        """V at `rows [batch, heads, width]`, `[batch, heads, width, head_dim]`."""
        batch, heads, _ = rows.shape
        request = torch.arange(batch, device=rows.device)[:, None, None]
        head = torch.arange(heads, device=rows.device)[:, None]
        values: Tensor = self.cache.v[request, head // (heads // self.cache.num_kv_heads), rows]
        return values


def measure(q: Tensor, cache: KVCache, token_ids: Tensor) -> dict[str, float]:
    """What attending `token_ids` alone keeps of `q`'s attention over `cache`, by name of METRICS.

    `token_ids` is `[batch, groups, width]`, as `select_tokens` makes it. `recall_worst` and
    `output_error_worst` are those of the worst query head.
    """
    return DenseReference.of(q, cache).measure(token_ids)


def recall(attended: Attended) -> Tensor:
    """The share of dense attention's mass that the selected tokens hold, a head at a time."""
    return attended.weights.sum(dim=-1)


def output_error(attended: Attended) -> Tensor:
    """‖sparse output - dense output‖ / ‖dense output‖, a head at a time."""
    dense = attended.dense_output
    error: Tensor = torch.linalg.vector_norm(attended.output - dense, dim=-1)
    size: Tensor = torch.linalg.vector_norm(dense, dim=-1)
    return error / size


def gap_closed(recall: float, random: float, oracle: float) -> float | None:
    """(recall - random) / (oracle - random): 0 is chance, 1 the best that blocks can do.

    None where chance does as well as the oracle, so that there is no gap.
    """
    gap = oracle - random
    return (recall - random) / gap if gap > 1e-9 else None


def resampled_means(values: Tensor, *, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Means of `values [units, columns]` over units drawn again, `[draws, columns]`.

    One draw takes the same units in every column, so that columns can be compared pair by pair.
    """
    generator = torch.Generator().manual_seed(seed)
    units = len(values)
    chosen = torch.randint(units, (draws, units), generator=generator)
    counts = torch.zeros(draws, units, dtype=values.dtype)
    counts.scatter_add_(1, chosen, torch.ones_like(counts))
    return counts @ values / units


def interval(samples: Tensor) -> tuple[float, float]:
    """The middle CONFIDENCE of `samples [draws]`, as (low, high)."""
    tail = (1 - CONFIDENCE) / 2
    low, high = samples.quantile(torch.tensor([tail, 1 - tail], dtype=samples.dtype)).tolist()
    return low, high


def verdict(difference: tuple[float, float]) -> str:
    """`better`, `worse` or `cannot tell`, from the interval of a difference in recall."""
    low, high = difference
    return "better" if low > 0 else "worse" if high < 0 else "cannot tell"


@dataclass(frozen=True, slots=True)
class Metric:
    """A named measure of a sparse decode: a number `[batch, num_q_heads]`, and which is worst."""

    name: str
    per_head: Callable[[Attended], Tensor]
    worst: Callable[[Tensor], Tensor]


METRICS: tuple[Metric, ...] = (
    Metric("recall", recall, torch.amin),
    Metric("output_error", output_error, torch.amax),
)
