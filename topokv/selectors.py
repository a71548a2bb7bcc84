"""Selectors: pure functions that score the blocks of a K cache for one query.

A selector only scores. Sinks, local window, budget and expansion are applied to all alike by
`topokv.schedule`. To add one: write the function, add a line to SELECTORS.

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

from topokv.blocks import BlockSummary
from topokv.cache import group_queries


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
    return _queries(summary, q) @ summary["centroid"].mT


def nsa(summary: BlockSummary, q: Tensor) -> Tensor:
    """softmax_b(q_h · c_b / √d), summed over the group. Source: Yuan et al. 2025, NSA."""
    return (mean_pool(summary, q) / math.sqrt(q.shape[-1])).softmax(dim=-1)


def quest(summary: BlockSummary, q: Tensor) -> Tensor:
    """Σ_d max(q_hd · min_bd, q_hd · max_bd), it bounds q_h · k. Source: Tang et al. 2024."""
    queries = _queries(summary, q)
    upper = queries.clamp(min=0) @ summary["maximum"].mT
    return upper + queries.clamp(max=0) @ summary["minimum"].mT


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
    queries = _queries(summary, q) / math.sqrt(q.shape[-1])
    return _two_point_mass(summary, queries, ("core", "witness"), 0.0)


def witness_var(summary: BlockSummary, q: Tensor) -> Tensor:
    """`witness`, the centre's term raised by ‖q_h‖² · var_b / 2d: a Gaussian's mean exponential.

    var_b is the mean over the block's tokens and dimensions of (k - c_b)², as if keys spread alike
    in all directions, which depends on the model: see docs/quality.md before you trust it.
    """
    queries = _queries(summary, q) / math.sqrt(q.shape[-1])
    spread = queries.square().sum(dim=-1, keepdim=True) * summary["variance"].unsqueeze(2)
    return _two_point_mass(summary, queries, ("core", "witness"), spread / 2)


def discriminant(summary: BlockSummary, q: Tensor) -> Tensor:
    """softmax_b(logaddexp(q_h · o_b / √d + ln(n_b - 1) + g_b, q_h · w_b / √d)), as `witness`.

    w_b, though, is the block's landmark: the key farthest from the mean by the metric N⁻¹BN⁻¹ of
    `topokv.landmarks`, the one most likely to take or to lose a query's attention by itself; o_b is
    the mean of the others. g_b is what their spread adds: their logits vary by q_hᵀ S q_h / d, S
    being the covariance of keys about o_b pooled over the head's blocks, and the exponentials of
    n_b - 1 Gaussian logits average more than that of their mean (`_spread_gain`). All statistics
    are the head's own: no constant is tuned to a model, and rescaled keys and queries choose alike.
    """
    queries = _queries(summary, q) / math.sqrt(q.shape[-1])
    variance = ((queries @ summary["spread"]) * queries).sum(dim=-1, keepdim=True)
    gain = _spread_gain(variance, summary.token_counts() - 1)
    return _two_point_mass(summary, queries, ("bulk", "landmark"), gain)


def oracle(summary: BlockSummary, q: Tensor) -> Tensor:
    """Σ_{i in b} softmax(q_h · k_i / √d)_i, the true mass, from every key: none chooses better."""
    queries = _queries(summary, q) / math.sqrt(q.shape[-1])
    logits = queries @ summary["keys"].to(summary_dtype(q)).mT
    mass = logits.softmax(dim=-1)
    padding = summary.num_blocks * summary.block_size - summary.kv_len
    mass = torch.nn.functional.pad(mass, (0, padding))
    return mass.view(*mass.shape[:-1], summary.num_blocks, summary.block_size).sum(dim=-1)


def _two_point_mass(
    summary: BlockSummary, queries: Tensor, points: tuple[str, str], gain: Tensor | float
) -> Tensor:
    """Each block's share: the exponentials of its centre, n_b - 1 times and raised, and outlier."""
    centre, outlier = (queries @ summary[part].mT for part in points)
    others = (summary.token_counts() - 1).log()
    return torch.logaddexp(centre + others + gain, outlier).softmax(dim=-1)


def _spread_gain(variance: Tensor, count: Tensor) -> Tensor:
    """The log of the mean exponential of `count` Gaussian numbers of mean 0.

    variance/2 while the sum has many terms of weight. Past variance 2 ln(count) its largest term
    rules and no Gaussian integral may be taken: √(2 variance ln(count)) - ln(count). Source:
    Derrida 1981, the random-energy model.
    """
    limit = 2 * count.clamp(min=1).log()
    variance = variance.clamp(min=0)
    return torch.where(variance < limit, variance / 2, (variance * limit).sqrt() - limit / 2)


def _queries(summary: BlockSummary, q: Tensor) -> Tensor:
    """`q` by KV head, `[batch, num_kv_heads, group, head_dim]`, in the summary's type."""
    return group_queries(q, summary.num_kv_heads).to(summary_dtype(q))


def summary_dtype(q: Tensor) -> torch.dtype:
    """The type of summaries and scores: float64 for float64 tensors, float32 for all others."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def selector_named(name: str) -> Selector:
    """The selector of that name; ValueError lists the valid ones."""
    for selector in SELECTORS:
        if selector.name == name:
            return selector
    expected = ", ".join(repr(selector.name) for selector in SELECTORS)
    raise ValueError(f"unknown selector {name!r}; expected one of {expected}")


SELECTORS: tuple[Selector, ...] = (
    Selector("drift", drift, ("drift",), lambda d, n: 1, sharing="request"),
    Selector("streaming", streaming, (), lambda d, n: 0, sharing="request"),
    Selector("random", random, ("noise",), lambda d, n: 1),
    Selector("mean-pool", mean_pool, ("centroid",), lambda d, n: d),
    Selector("nsa", nsa, ("centroid",), lambda d, n: d),
    Selector("quest", quest, ("minimum", "maximum"), lambda d, n: 2 * d),
    Selector("keydiff", keydiff, ("centroid",), lambda d, n: d),
    Selector("witness", witness, ("core", "witness"), lambda d, n: 2 * d),
    Selector("witness-var", witness_var, ("core", "witness", "variance"), lambda d, n: 2 * d + 1),
    Selector(
        "discriminant",
        discriminant,
        ("bulk", "landmark", "spread"),
        lambda d, n: 2 * d,
        from_prompt=True,
    ),
    Selector("oracle", oracle, ("keys",), lambda d, n: d * n),
)
