"""Statistics of a head's keys that tell which key of a block a query is likely to single out.

Euclidean distance can't tell: scaling a dimension of every key by a and of every query by 1/a
leaves all attention as it was, yet moves which key is farthest. What counts is how far keys reach
along the directions that queries take, and the keys alone say something of those. A query that
seeks one kind of key among noise of covariance N does best along N⁻¹k (Fisher's discriminant). So,
with B the covariance of block means (what tells blocks apart) and N that of keys within their
blocks, queries spread as N⁻¹BN⁻¹, and a key's expected squared logit about its block's mean m is
(k - m)ᵀ N⁻¹BN⁻¹ (k - m). Rescaled keys and queries give the same distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Of each dimension's own variance, added to it: N has an inverse where keys are few. The choice is
# not a tuned one: from 1e-4 to 1e-2 nothing moved.
RIDGE = 1e-4


class KeyMoments:
    """Means and scatter of a head's blocks, added up piece by piece."""

    def __init__(self) -> None:
        self._means: list[Tensor] = []
        self._scatter: Tensor | None = None

    def add(self, keys: Tensor) -> None:
        """Take more blocks, `[batch, num_kv_heads, n, size, head_dim]`."""
        mean = keys.mean(dim=-2)
        rest = (keys - mean.unsqueeze(-2)).flatten(2, 3)
        scatter = rest.mT @ rest
        self._scatter = scatter if self._scatter is None else self._scatter + scatter
        self._means.append(mean)

    @property
    def scatter(self) -> Tensor:
        """Σ (k - m)(k - m)ᵀ over all keys, `[batch, num_kv_heads, head_dim, head_dim]`."""
        if self._scatter is None:
            raise ValueError("scatter needs at least one block, got none")
        return self._scatter

    def metric(self) -> Tensor:
        """N⁻¹BN⁻¹ up to a factor, `[batch, num_kv_heads, head_dim, head_dim]`; 0 for one block."""
        inverse = _inverse(self.scatter)
        means = torch.cat(self._means, dim=2)
        apart = means - means.mean(dim=2, keepdim=True)
        return inverse @ (apart.mT @ apart) @ inverse


def _inverse(scatter: Tensor) -> Tensor:
    """The inverse of `scatter` with its ridge; dimensions that never vary come out 0."""
    variance = scatter.diagonal(dim1=-2, dim2=-1)
    scale = variance.rsqrt().where(variance > 0, 0)
    outer = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    ridge = RIDGE * torch.eye(scatter.shape[-1], dtype=scatter.dtype, device=scatter.device)
    # No check that it is regular: keys with NaN give NaN, not an error.
    inverse: Tensor = torch.linalg.inv_ex(scatter * outer + ridge).inverse
    return inverse * outer


def squared_reach(keys: Tensor, mean: Tensor, metric: Tensor) -> Tensor:
    """(k - m)ᵀ M (k - m) for each key, `[batch, num_kv_heads, n, size]`, m its block's mean.

    `keys` is `[batch, num_kv_heads, n, size, head_dim]`, `mean` `[batch, num_kv_heads, n,
    head_dim]`, `metric` as KeyMoments makes it.
    """
    rest = keys - mean.unsqueeze(-2)
    # As one product a head: broadcasting the metric over blocks would copy it for each.
    along = (rest.flatten(2, 3) @ metric).view_as(rest)
    return along.mul_(rest).sum(dim=-1)


def spread_of_others(scatter: Tensor, landmarks: Tensor, counts: Tensor) -> Tensor:
    """The covariance within blocks of all keys but the landmarks, pooled over a head's blocks.

    `[batch, num_kv_heads, head_dim, head_dim]`. `scatter` is of all keys; taking the landmark out
    of a block of n leaves less by (n - 1)/n of its outer square about the others' mean. `landmarks`
    `[batch, num_kv_heads, num_blocks, 2, head_dim]` are that mean and the landmark of each block,
    `counts` `[num_blocks]` its tokens.
    """
    gap = landmarks.diff(dim=-2).squeeze(-2)
    weight = ((counts - 1) / counts).to(gap.dtype).unsqueeze(-1)
    freedom = (counts - 2).clamp(min=0).sum().clamp(min=1).to(gap.dtype)
    return (scatter - gap.mT @ (weight * gap)) / freedom
