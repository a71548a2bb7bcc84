"""Selectors: pure functions that score the blocks of a K cache for one query.

A selector only scores. Sinks, local window, budget and expansion are applied to all alike by
`schedule`. To add one: write the function, add a line to SELECTORS.

Notation: q_h a query head, c_b the mean key of block b, n_b its number of tokens, d head_dim.
Scores are `[batch, num_kv_heads, group, num_blocks]`, a size of 1 where the score is the same for
all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from topokv.core import choose
from topokv.scheduling.block_summary import BlockSummary
from topokv.tensors import group_queries, wide_dtype


@dataclass(frozen=True, slots=True)
class Selector:
    """A named way to score blocks.

    `parts` are what it needs of a BlockSummary, `floats_per_block(head_dim, block_size)` what it
    reads of each block of a KV head at every step, `sharing` how many schedules it makes unless
    told. `from_prompt`: it judges by statistics of the keys that the summary was built from, so
    that a cache that grew is not scheduled quite as one seen at once.
    """

    name: str
    score: Callable[[BlockSummary, Tensor], Tensor]
    parts: tuple[str, ...]
    floats_per_block: Callable[[int, int], int]
    sharing: str = "kv-head"
    from_prompt: bool = False

    def summarise(
        self, k: Tensor, block_size: int, *, sharing: str | None = None, seed: int = 0
    ) -> BlockSummary:
        """The summary of `k [batch, num_kv_heads, kv_len, head_dim]` that this selector reads."""
        shared = (sharing or self.sharing) == "request"
        return BlockSummary(k, block_size, self.parts, shared_heads=shared, seed=seed)


def drift(summary: BlockSummary, q: Tensor) -> Tensor:
    """‖c_b - c_{b-1}‖, whatever the query: the published topology rule.

    Where one schedule serves a request, centroids are averaged over the KV heads first.
    """
    return summary["drift"].unsqueeze(2)


def streaming(summary: BlockSummary, q: Tensor) -> Tensor:
    """The block's index: sinks and the newest blocks. Source: Xiao et al. 2023, StreamingLLM."""
    index = torch.arange(summary.num_blocks, dtype=torch.float32, device=q.device)
    return index.expand(q.shape[0], 1, 1, -1)


def random(summary: BlockSummary, q: Tensor) -> Tensor:
    """A seeded uniform number for each block of each KV head: the null model."""
    return summary["noise"].unsqueeze(2)


def mean_pool(summary: BlockSummary, q: Tensor) -> Tensor:
    """q_h · c_b. Source: Lu et al. 2025, MoBA."""
    return _products(_queries(summary, q), summary["centroid"])


def nsa(summary: BlockSummary, q: Tensor) -> Tensor:
    """softmax_b(q_h · c_b / √d), summed over the group. Source: Yuan et al. 2025, NSA."""
    return (mean_pool(summary, q) / math.sqrt(q.shape[-1])).softmax(dim=-1)


def quest(summary: BlockSummary, q: Tensor) -> Tensor:
    """Σ_d max(q_hd · min_bd, q_hd · max_bd), it bounds q_h · k. Source: Tang et al. 2024."""
    queries = _queries(summary, q)
    signed = torch.cat((queries.clamp(max=0), queries.clamp(min=0)), dim=-1)
    return _products(signed, summary["box"].flatten(-2))


def keydiff(summary: BlockSummary, q: Tensor) -> Tensor:
    """-cos(c_b, a), a the mean of the normalised c_b: blocks unlike the rest, whatever the query.

    Source: Park et al. 2025, KeyDiff, on keys; here on their block means.
    """
    direction = torch.nn.functional.normalize(summary["centroid"], dim=-1)
    anchor = torch.nn.functional.normalize(direction.mean(dim=2, keepdim=True), dim=-1)
    return -(direction * anchor).sum(dim=-1).unsqueeze(2)


def witness(summary: BlockSummary, q: Tensor) -> Tensor:
    """softmax_b(logaddexp(q_h · o_b / √d + ln(n_b - 1), q_h · w_b / √d)): mass, as far as it shows.

    w_b is the key farthest from c_b, o_b the mean of the n_b - 1 others: a block is a small cloud
    of points, described by its centre and its farthest point.
    """
    return _two_point_mass(summary, _queries(summary, q), "points")


def witness_var(summary: BlockSummary, q: Tensor) -> Tensor:
    """`witness`, the centre's term raised by ‖q_h‖² · var_b / 2d²: a Gaussian's mean exponential.

    var_b is the mean over the block's tokens of ‖k - c_b‖², so that var_b / d is what each of d
    dimensions varies by if keys spread alike in all directions. Whether they do depends on the
    model: see docs/quality.md before you trust it.
    """
    queries = _queries(summary, q)
    spread = queries.square().sum(dim=-1, keepdim=True) * summary["variance"].unsqueeze(2)
    return _two_point_mass(summary, queries, "points", spread / (2 * q.shape[-1] ** 2))


def discriminant(summary: BlockSummary, q: Tensor) -> Tensor:
    """softmax_b(logaddexp(q_h · o_b / √d + ln(n_b - 1) + g_b, q_h · w_b / √d)), as `witness`.

    w_b, though, is the block's landmark: the key farthest from the mean by the metric N⁻¹BN⁻¹ of
    `landmarks`, the one most likely to take or to lose a query's attention by itself; o_b is
    the mean of the others. g_b is what their spread adds: their logits vary by q_hᵀ S q_h / d, S
    being the covariance of keys about o_b pooled over the head's blocks, and the exponentials of
    n_b - 1 Gaussian logits average more than that of their mean (`_spread_gain`). All statistics
    are the head's own: no constant is tuned to a model, and rescaled keys and queries choose alike.
    """
    queries = _queries(summary, q)
    variance = ((queries @ summary["spread"]) * queries).sum(dim=-1, keepdim=True) / q.shape[-1]
    gain = _spread_gain(variance, summary["log_weights"][..., 0])
    return _two_point_mass(summary, queries, "landmarks", gain)


def oracle(summary: BlockSummary, q: Tensor) -> Tensor:
    """Σ_{i in b} softmax(q_h · k_i / √d)_i, the true mass, from every key: none chooses better."""
    queries = _queries(summary, q) / math.sqrt(q.shape[-1])
    logits = queries @ summary["keys"].to(wide_dtype(q)).mT
    mass = logits.softmax(dim=-1)
    padding = summary.num_blocks * summary.block_size - summary.kv_len
    mass = torch.nn.functional.pad(mass, (0, padding))
    return mass.view(*mass.shape[:-1], summary.num_blocks, summary.block_size).sum(dim=-1)


def _two_point_mass(
    summary: BlockSummary, queries: Tensor, pairs: str, gain: Tensor | None = None
) -> Tensor:
    """Each block's share: the exponentials of its centre, n_b - 1 times and raised, and outlier.

    The part `pairs` holds both, `[batch, num_kv_heads, num_blocks, 2, head_dim]`. The softmax over
    all points, added up by block, is that of the sums by block.
    """
    points = summary[pairs].flatten(2, 3)
    weights = summary["log_weights"].flatten(2)
    logits = _products(queries, points, weights, 1 / math.sqrt(queries.shape[-1]))
    if gain is not None:
        torch.unflatten(logits, -1, (-1, 2))[..., 0] += gain
    mass = torch.unflatten(logits.softmax(dim=-1), -1, (-1, 2))
    return mass[..., 0] + mass[..., 1]


def _products(
    queries: Tensor, vectors: Tensor, plus: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """Scaled q · v + plus for every query and vector, `[batch, num_kv_heads, group, n]`.

    `queries` is `[batch, num_kv_heads, group, head_dim]`, `vectors`
    `[batch, num_kv_heads, n, head_dim]`, `plus` `[1, 1, n]`. One operation with the vectors on the
    left, whose rows lie whole in memory: a step's scores take longer to begin than to finish.
    """
    v, q = vectors.flatten(0, 1), queries.flatten(0, 1).mT
    found = torch.bmm(v, q) if plus is None else torch.baddbmm(plus.mT, v, q, alpha=scale)
    return torch.unflatten(found.mT, 0, queries.shape[:2])


def _spread_gain(variance: Tensor, log_count: Tensor) -> Tensor:
    """The log of the mean exponential of n Gaussian numbers of mean 0, given n's logarithm.

    variance/2 while the sum has many terms of weight. Past variance 2 ln(n) its largest term rules
    and no Gaussian integral may be taken: √(2 variance ln(n)) - ln(n). Source: Derrida 1981, the
    random-energy model.
    """
    limit = 2 * log_count.clamp(min=0)
    variance = variance.clamp(min=0)
    return torch.where(variance < limit, variance / 2, (variance * limit).sqrt() - limit / 2)


def _queries(summary: BlockSummary, q: Tensor) -> Tensor:
    """`q` by KV head, `[batch, num_kv_heads, group, head_dim]`, in the summary's type."""
    return group_queries(q, summary.num_kv_heads).to(wide_dtype(q))


def selector_named(name: str) -> Selector:
    """The selector of that name; ValueError lists the valid ones."""
    return choose("selector", name, SELECTORS)


SELECTORS: tuple[Selector, ...] = (
    Selector("drift", drift, ("drift",), lambda d, n: 1, sharing="request"),
    Selector("streaming", streaming, (), lambda d, n: 0, sharing="request"),
    Selector("random", random, ("noise",), lambda d, n: 1),
    Selector("mean-pool", mean_pool, ("centroid",), lambda d, n: d),
    Selector("nsa", nsa, ("centroid",), lambda d, n: d),
    Selector("quest", quest, ("box",), lambda d, n: 2 * d),
    Selector("keydiff", keydiff, ("centroid",), lambda d, n: d),
    Selector("witness", witness, ("points", "log_weights"), lambda d, n: 2 * d),
    Selector(
        "witness-var",
        witness_var,
        ("points", "variance", "log_weights"),
        lambda d, n: 2 * d + 1,
    ),
    Selector(
        "discriminant",
        discriminant,
        ("landmarks", "spread", "log_weights"),
        lambda d, n: 2 * d,
        from_prompt=True,
    ),
    Selector("oracle", oracle, ("keys",), lambda d, n: d * n),
)
