"""BlockSummary: what is kept of each block of a K cache, built once and updated per token."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from topokv.core import check_choice, check_sizes
from topokv.scheduling.landmarks import spread_of_others
from topokv.scheduling.summaries import OF_MEAN, moments, summarise, summarise_all, token_sums
from topokv.tensors import wide_dtype, without_gradient

# What can be kept of a block; `summaries.summarise` says what each one is.
PARTS = (
    "centroid",
    "box",
    "points",
    "variance",
    "landmarks",
    "spread",
    "log_weights",
    "drift",
    "noise",
    "keys",
)

# Those that need statistics of all the keys, which are taken once, when the summary is built.
_OF_LANDMARK = frozenset({"landmarks", "spread"})


def block_centroids(k: Tensor, block_size: int) -> Tensor:
    """The mean key of each block, `[batch, num_kv_heads, num_blocks, head_dim]`.

    `k` is `[batch, num_kv_heads, kv_len, head_dim]`; `[num_kv_heads, kv_len, head_dim]` and
    `[kv_len, head_dim]` are read as a batch of one and one head. A partial last block divides by
    its own number of tokens. Half precision accumulates in and returns float32; float64 stays.

    Raises ValueError for another rank, an empty sequence or a block size below 1.
    """
    keys = promote_keys(k)
    check_sizes(block_size=block_size)
    return summarise_all(keys, block_size, ("centroid",))["centroid"]


def centroid_drift(centroids: Tensor) -> Tensor:
    """How far each block's centroid lies from the one before it (L2), `[..., num_blocks]`.

    `centroids` is `[..., num_blocks, head_dim]`. Block 0 has no block before it and scores 0.
    """
    if centroids.ndim < 2 or 0 in centroids.shape:
        shape = list(centroids.shape)
        raise ValueError(f"centroids must be [..., num_blocks, head_dim], none 0, got {shape}")
    centroids = without_gradient(centroids)
    drift = centroids.new_zeros(centroids.shape[:-1])
    _steps(centroids, drift[..., 1:])
    return drift


def _steps(centroids: Tensor, out: Tensor | None = None) -> Tensor:
    """How far each of `centroids [..., n, head_dim]` but the first lies from the one before it."""
    steps: Tensor = torch.linalg.vector_norm(centroids.diff(dim=-2), dim=-1, out=out)
    return steps


def promote_keys(k: Tensor) -> Tensor:
    """Keys of rank 2, 3 or 4 as `[batch, num_kv_heads, kv_len, head_dim]`, a view."""
    if not isinstance(k, Tensor):
        raise TypeError(f"k must be a tensor, got {type(k).__name__}")
    if not k.is_floating_point():
        raise TypeError(f"k must be of a floating-point type, got {k.dtype}")
    if not 2 <= k.ndim <= 4 or 0 in k.shape:
        raise ValueError(
            "k must be [batch, num_kv_heads, kv_len, head_dim], [num_kv_heads, kv_len, head_dim] "
            f"or [kv_len, head_dim], every size at least 1, got {list(k.shape)}"
        )
    return without_gradient(k).reshape((1,) * (4 - k.ndim) + k.shape)


def block_noise(seed: int, batch: int, num_heads: int, first: int, last: int) -> Tensor:
    """A number in [0, 1) for each block from `first` to `last`, `[batch, num_heads, last - first]`.

    Counter-based (the finaliser of SplitMix64 over seed and place), so that a block's number does
    not depend on how many blocks there are, nor on the device.
    """
    place = torch.arange(first, last)
    place = place + (torch.arange(batch * num_heads).view(batch, num_heads, 1) << 40)
    mixed = _mix(_mix(torch.tensor(seed)) + place)
    return ((mixed >> 40) & 0xFFFFFF).float() / 2**24


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, whose products wrap as unsigned ones do."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _with_needed(parts: Collection[str]) -> frozenset[str]:
    """`parts` with those that they are made from."""
    needed = {"centroid"} if "drift" in parts else set()
    if not _OF_LANDMARK.isdisjoint(parts):
        needed |= {"landmarks"}
    return frozenset(parts) | needed


class BlockSummary:
    """The parts kept of each block of a growing K cache.

    `summary[part]` is `[batch, num_kv_heads, num_blocks, ...]`, with `[head_dim]` at its end, or
    `[2, head_dim]` for a pair of vectors, or nothing for one number a block; float32, or float64
    for float64 keys. With `shared_heads` centroids are averaged over the KV heads before drift is
    taken, which is then `[batch, 1, num_blocks]`. log_weights, `[1, 1, num_blocks, 2]`, is the
    logarithm of how many tokens each of a block's points stands for: n - 1, and 1. `append` takes
    one token's keys and recomputes the last block alone.

    Landmarks are judged by statistics of the keys that the summary is built from, as a prompt's:
    they and `spread [batch, num_kv_heads, head_dim, head_dim]`, one for all blocks, stay as the
    cache grows.
    """

    def __init__(
        self,
        k: Tensor,
        block_size: int,
        parts: Collection[str],
        *,
        shared_heads: bool = False,
        seed: int = 0,
    ) -> None:
        for part in parts:
            check_choice("part", part, PARTS)
        check_sizes(block_size=block_size)
        k = without_gradient(k)
        self.block_size = block_size
        self.kv_len = k.shape[2]
        self.shared_heads = shared_heads
        self._seed = seed
        self._parts = _with_needed(parts)
        self._summed = OF_MEAN.intersection(self._parts)
        self._shape = (k.shape[0], k.shape[1])
        self._of_head: dict[str, Tensor] = {}
        self._open(k)
        self._stored = self._build(k)

    def _open(self, k: Tensor) -> None:
        """The keys of a last block that is not full, and their sum."""
        shape = (*self._shape, self.block_size, k.shape[3])
        self._tail = k.new_empty(shape, dtype=wide_dtype(k))
        self._sum = self._tail.new_zeros(*self._shape, 1, k.shape[3])
        open_tokens = self.kv_len % self.block_size
        if open_tokens:
            keys = self._tail[:, :, :open_tokens].copy_(k[:, :, -open_tokens:])
            self._sum = token_sums(keys.unsqueeze(2))

    def _build(self, k: Tensor) -> dict[str, _Column]:
        statistics = None if _OF_LANDMARK.isdisjoint(self._parts) else moments(k, self.block_size)
        self._metric = None if statistics is None else statistics.metric()
        kept = summarise_all(k, self.block_size, self._parts, self._metric)
        if "noise" in self._parts:
            kept["noise"] = block_noise(self._seed, *self._shape, 0, self.num_blocks).to(k.device)
        if "drift" in self._parts:
            kept["drift"] = centroid_drift(self._shared(kept["centroid"]))
        if "log_weights" in self._parts:
            kept["log_weights"] = self._log_weights()
        if statistics is not None:
            self._of_head["spread"] = spread_of_others(
                statistics.scatter, kept["landmarks"], self._token_counts()
            )
        if "keys" in self._parts:
            kept["keys"] = k
        return {name: _Column(tensor) for name, tensor in kept.items()}

    def _log_weights(self) -> Tensor:
        weights = self._tail.new_zeros(1, 1, self.num_blocks, 2)
        weights[..., 0] = _log(self.block_size - 1)
        weights[..., -1, 0] = _log(self._last_count - 1)
        return weights

    @property
    def num_blocks(self) -> int:
        return -(-self.kv_len // self.block_size)

    @property
    def _last_count(self) -> int:
        """How many tokens the last block holds."""
        return self.kv_len - (self.num_blocks - 1) * self.block_size

    def __getitem__(self, part: str) -> Tensor:
        if part in self._of_head:
            return self._of_head[part]
        return self._stored[part].tensor

    @property
    def num_kv_heads(self) -> int:
        return self._shape[1]

    @property
    def device(self) -> torch.device:
        return self._tail.device

    def _token_counts(self) -> Tensor:
        """How many tokens each block holds, `[num_blocks]`, float32."""
        counts = torch.full((self.num_blocks,), float(self.block_size), device=self.device)
        counts[-1] = self._last_count
        return counts

    def append(self, k_token: Tensor) -> None:
        """Take the keys of one more token, `[batch, num_kv_heads, 1, head_dim]`."""
        k_token = without_gradient(k_token)
        place = self.kv_len % self.block_size
        if place == 0:
            self._sum.zero_()
        key = self._tail[:, :, place : place + 1].copy_(k_token)
        self._sum += key
        self.kv_len += 1
        last = self.num_blocks - 1
        if "box" in self._parts:
            self._extend_box(last, key)
        if self._summed:
            keys, mean = self._tail[:, :, : place + 1].unsqueeze(2), self._sum / (place + 1)
            into = {part: self._stored[part].slot_at(last) for part in self._summed}
            summarise(keys, into, mean, self._metric)
        self._append_rest(last, k_token)

    def _extend_box(self, last: int, key: Tensor) -> None:
        box = self._stored["box"]
        if self._last_count == 1:
            box.put(last, key.unsqueeze(-2))
        else:
            low, high = box.slot_at(last).unbind(-2)
            torch.minimum(low, key, out=low)
            torch.maximum(high, key, out=high)

    def _append_rest(self, last: int, k_token: Tensor) -> None:
        if "drift" in self._parts and last:
            centroids = self._shared(self["centroid"][:, :, last - 1 :])
            self._stored["drift"].put(last, _steps(centroids))
        if "log_weights" in self._parts:
            self._stored["log_weights"].slot_at(last)[..., 0] = _log(self._last_count - 1)
        if "noise" in self._parts and self.kv_len % self.block_size == 1 % self.block_size:
            noise = block_noise(self._seed, *self._shape, last, last + 1)
            self._stored["noise"].put(last, noise.to(k_token.device))
        if "keys" in self._parts:
            self._stored["keys"].put(self.kv_len - 1, k_token)

    def _shared(self, centroids: Tensor) -> Tensor:
        return centroids.mean(dim=1, keepdim=True) if self.shared_heads else centroids


def _log(count: int) -> float:
    return math.log(count) if count else -math.inf


class _Column:
    """A tensor that grows along its third size, in place while its spare room lasts.

    There is no spare room before it first grows.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = self._room = tensor
        self._slot = tensor
        self._last = -1

    def put(self, index: int, value: Tensor) -> None:
        """Set entry `index`: the last one, or the one after it."""
        self.slot_at(index).copy_(value)

    def slot_at(self, index: int) -> Tensor:
        """Entry `index`, to be written to: the last one, or the one after it."""
        if index != self._last:
            if index >= self._room.shape[2]:
                self._grow(index + index // 8 + 16)
            self._last = index
            self._slot = self._room[:, :, index : index + 1]
            self.tensor = self._room[:, :, : index + 1]
        return self._slot

    def _grow(self, places: int) -> None:
        room = self._room.new_zeros(*self._room.shape[:2], places, *self._room.shape[3:])
        room[:, :, : self._room.shape[2]] = self._room
        self._room = room
