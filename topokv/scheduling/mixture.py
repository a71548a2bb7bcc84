"""Mixtures of selectors: each ranks blocks on its own and fills its share of the scored budget.

They answer whether one rule adds to another: `witness=0.75,drift=0.25` spends a quarter of the
scored blocks on drift, among those that witness did not take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from topokv.core import SHARINGS
from topokv.scheduling.block_summary import BlockSummary
from topokv.scheduling.budget import Budget
from topokv.scheduling.schedule import mix, share
from topokv.scheduling.selectors import Selector, selector_named


@dataclass(frozen=True, slots=True)
class Mixture:
    """Selectors with their shares of the scored budget, which add up to 1; often just one.

    Raises ValueError for shares that are not positive or do not add up to 1, and for a selector
    named twice.
    """

    selectors: tuple[Selector, ...]
    shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        names = [selector.name for selector in self.selectors]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"a mixture names each selector once, got {min(twice)!r} twice")
        if any(not fraction > 0 for fraction in self.shares):
            raise ValueError(f"shares of {self.name!r} must be above 0")
        if not math.isclose(sum(self.shares), 1, abs_tol=1e-6):
            raise ValueError(f"shares of {self.name!r} must add up to 1, got {sum(self.shares):g}")

    @property
    def name(self) -> str:
        """The selector's own name, or as it is written: `witness=0.5,drift=0.5`."""
        if self.shares == (1.0,):
            return self.selectors[0].name
        pairs = zip(self.selectors, self.shares, strict=True)
        return ",".join(f"{selector.name}={fraction:g}" for selector, fraction in pairs)

    @property
    def sharing(self) -> str:
        """The finest sharing that one of the selectors asks for."""
        return max((selector.sharing for selector in self.selectors), key=SHARINGS.index)

    @property
    def parts(self) -> frozenset[str]:
        """What all the selectors need of a BlockSummary."""
        return frozenset(part for selector in self.selectors for part in selector.parts)

    def floats_per_block(self, head_dim: int, block_size: int) -> int:
        """What is read of each block of a KV head at every step, by all selectors together."""
        return sum(s.floats_per_block(head_dim, block_size) for s in self.selectors)

    def summarise(
        self, k: Tensor, block_size: int, *, sharing: str | None = None, seed: int = 0
    ) -> BlockSummary:
        """The summary of `k [batch, num_kv_heads, kv_len, head_dim]` that the selectors read."""
        shared = (sharing or self.sharing) == "request"
        return BlockSummary(k, block_size, self.parts, shared_heads=shared, seed=seed)

    def scores(self, summary: BlockSummary, q: Tensor, sharing: str, budget: Budget) -> Tensor:
        """Scores of each schedule, `[batch, groups, num_blocks]`, that `budget` is filled by."""
        group = q.shape[1] // summary.num_kv_heads
        shared = [
            share(selector.score(summary, q), sharing, summary.num_kv_heads, group)
            for selector in self.selectors
        ]
        return shared[0] if len(shared) == 1 else mix(shared, self.shares, budget)


def mixture_of(selector: str | Selector | Mixture) -> Mixture:
    """The mixture written as `witness=0.5,drift=0.5`, or of the one selector that is named."""
    if isinstance(selector, Mixture):
        return selector
    if isinstance(selector, Selector):
        return Mixture((selector,))
    if "=" not in selector:
        return Mixture((selector_named(selector),))
    return _parsed(selector)


def _parsed(text: str) -> Mixture:
    pairs = [part.partition("=") for part in text.split(",")]
    selectors = tuple(selector_named(name.strip()) for name, _, _ in pairs)
    return Mixture(selectors, tuple(_fraction(text, number) for _, _, number in pairs))


def _fraction(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(
            f"shares must be numbers, as in 'witness=0.5,drift=0.5', got {text!r}"
        ) from None
