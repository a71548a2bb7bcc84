"""BlockSummary: what is kept of each block of a K cache, built once and updated per token."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from topokv.landmarks import KeyMoments, spread_of_others, squared_reach

# What can be kept of a block; `blocks.summarise` says what each one is.
PARTS = (
    "centroid",
    "minimum",
    "maximum",
    "core",
    "witness",
    "variance",
    "bulk",
    "landmark",
    "spread",
    "drift",
    "noise",
    "keys",
)


# Parts that `summarise` takes from a block's keys.
_OF_KEYS = frozenset(
    {"centroid", "minimum", "maximum", "core", "witness", "variance", "bulk", "landmark"}
)

# Those that take each key's distance from its block's mean, and so a tensor as large as the keys.
_OF_DISTANCE = frozenset({"core", "witness", "variance", "bulk", "landmark"})

# Those that need statistics of all the keys, which are taken once, when the summary is built.
_OF_LANDMARK = frozenset({"bulk", "landmark", "spread"})

# How many float32 bytes of keys are worked on at a time: on a CPU what its caches hold, so that
# memory is read once and nothing as large as K is ever made; on a device what keeps it busy.
_CPU_PIECE_BYTES = 4 << 20
_DEVICE_PIECE_BYTES = 256 << 20


def check_block_size(block_size: int) -> None:
    """Raise unless the block size is a positive whole number."""
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size must be a whole number, got {block_size!r}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")


def block_centroids(k: Tensor, block_size: int) -> Tensor:
    """The mean key of each block, `[batch, num_kv_heads, num_blocks, head_dim]`.

    `k` is `[batch, num_kv_heads, kv_len, head_dim]`; `[num_kv_heads, kv_len, head_dim]` and
    `[kv_len, head_dim]` are read as a batch of one and one head. A partial last block divides by
    its own number of tokens. Half precision accumulates in and returns float32; float64 stays.

    Raises ValueError for another rank, an empty sequence or a block size below 1.
    """
    return _summarise_all(promote_keys(k), block_size, ("centroid",))["centroid"]


def centroid_drift(centroids: Tensor) -> Tensor:
    """How far each block's centroid lies from the one before it (L2), `[..., num_blocks]`.

    `centroids` is `[..., num_blocks, head_dim]`. Block 0 has no block before it and scores 0.
    """
    if centroids.ndim < 2 or 0 in centroids.shape:
        shape = list(centroids.shape)
        raise ValueError(f"centroids must be [..., num_blocks, head_dim], none 0, got {shape}")
    steps = torch.linalg.vector_norm(centroids[..., 1:, :] - centroids[..., :-1, :], dim=-1)
    return torch.cat((torch.zeros_like(centroids[..., :1, 0]), steps), dim=-1)


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
    return k.reshape((1,) * (4 - k.ndim) + k.shape)


def summarise(
    keys: Tensor,
    parts: Collection[str],
    metric: Tensor | None = None,
    scratch: Tensor | None = None,
) -> dict[str, Tensor]:
    """What `parts` keep of blocks of equal size.

    `keys` is `[batch, num_kv_heads, num_blocks, size, head_dim]`.

    centroid: the mean key; minimum, maximum: per dimension; witness: the key farthest (L2) from
    the mean, the earliest of equals; core: the mean of the others (of a lone key, that key);
    variance: the mean over tokens and dimensions of (k - mean)², `[..., num_blocks]`; landmark:
    the key farthest from the mean by `metric` (see `topokv.landmarks`); bulk: the mean of the
    others. Differences from the mean are worked out in `scratch`, where that is given.
    """
    kept: dict[str, Tensor] = {}
    # Two reductions: aminmax over any but the last size takes four times as long as both.
    if "minimum" in parts:
        kept["minimum"] = keys.amin(dim=-2)
    if "maximum" in parts:
        kept["maximum"] = keys.amax(dim=-2)
    if _OF_DISTANCE.isdisjoint(parts) and "centroid" not in parts:
        return kept
    mean = keys.mean(dim=-2)
    kept["centroid"] = mean
    if not {"core", "witness", "variance"}.isdisjoint(parts):
        kept |= _around_mean(keys, mean, scratch)
    if metric is not None:
        kept["landmark"], kept["bulk"] = _apart(keys, mean, squared_reach(keys, metric))
    return {part: kept[part] for part in parts if part in kept}


def _around_mean(keys: Tensor, mean: Tensor, scratch: Tensor | None) -> dict[str, Tensor]:
    """The parts of distance: each block's witness, core and variance."""
    distance = torch.sub(keys, mean.unsqueeze(-2), out=scratch).square_().sum(dim=-1)
    witness, core = _apart(keys, mean, distance)
    return {"witness": witness, "core": core, "variance": distance.mean(dim=-1) / keys.shape[-1]}


def _apart(keys: Tensor, mean: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Each block's farthest key and the mean of the others; a lone key is both."""
    size, head_dim = keys.shape[-2:]
    farthest = distance.argmax(dim=-1)[..., None, None].expand(*mean.shape[:-1], 1, head_dim)
    far = keys.gather(-2, farthest).squeeze(-2)
    # The mean without its farthest: mean + (mean - far) / (size - 1), in one operation.
    return far, mean if size == 1 else mean.lerp(far, -1 / (size - 1))


def _summarise_all(
    k: Tensor,
    block_size: int,
    parts: Collection[str],
    room: int = 0,
    metric: Tensor | None = None,
) -> dict[str, Tensor]:
    """`summarise` of all of `k`; each part has room for `room` more blocks at its end."""
    check_block_size(block_size)
    kept: dict[str, Tensor] = {}
    if _OF_KEYS.isdisjoint(parts):
        return kept
    places = -(-k.shape[2] // block_size) + room
    scratch: Tensor | None = None
    for first, keys in _pieces(k, block_size):
        if scratch is None or scratch.shape != keys.shape:
            scratch = None if _OF_DISTANCE.isdisjoint(parts) else torch.empty_like(keys)
        for part, tensor in summarise(keys, parts, metric, scratch).items():
            if part not in kept:
                kept[part] = tensor.new_empty(*k.shape[:2], places, *tensor.shape[3:])
            kept[part][:, :, first : first + tensor.shape[2]] = tensor
    return kept


def _moments(k: Tensor, block_size: int) -> KeyMoments:
    moments = KeyMoments()
    for _, keys in _pieces(k, block_size):
        moments.add(keys)
    return moments


def _pieces(k: Tensor, block_size: int) -> Iterator[tuple[int, Tensor]]:
    """Keys by block, `[batch, num_kv_heads, n, size, head_dim]`, with the first block's index.

    Copied into one buffer, half precision as float32: take what you need before the next piece. A
    copy streams from memory at twice the speed of a reduction over tokens, which then meets cache.
    """
    full = k.shape[2] // block_size
    step = max(1, min(full, _blocks_at_a_time(k, block_size)))
    whole = torch.unflatten(k[:, :, : full * block_size], 2, (full, block_size))
    shape = (*k.shape[:2], step, block_size, k.shape[3])
    buffer = k.new_empty(shape if full else 0, dtype=_wide_dtype(k))
    for first in range(0, full, step):
        keys = whole[:, :, first : first + step]
        yield first, buffer[:, :, : keys.shape[2]].copy_(keys)
    if full * block_size < k.shape[2]:
        yield full, k[:, :, full * block_size :].unsqueeze(2).to(_wide_dtype(k))


def _blocks_at_a_time(k: Tensor, block_size: int) -> int:
    piece = _CPU_PIECE_BYTES if k.device.type == "cpu" else _DEVICE_PIECE_BYTES
    return piece // (k.shape[0] * k.shape[1] * block_size * k.shape[3] * 4)


def _wide_dtype(keys: Tensor) -> torch.dtype:
    """The type that sums of keys are taken in and summaries are kept in."""
    return keys.dtype if keys.element_size() >= 4 else torch.float32


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
        needed |= {"bulk", "landmark"}
    return frozenset(parts) | needed


class BlockSummary:
    """The parts kept of each block of a growing K cache.

    `summary[part]` is `[batch, num_kv_heads, num_blocks, head_dim]`, or without the last size for
    the parts that are one number a block; float32, or float64 for float64 keys. With `shared_heads`
    centroids are averaged over the KV heads before drift is taken, which is then `[batch, 1,
    num_blocks]`. `append` takes one token's keys and recomputes the last block alone.

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
            if part not in PARTS:
                raise ValueError(f"unknown part {part!r}; expected one of {', '.join(PARTS)}")
        self.block_size = block_size
        self.kv_len = k.shape[2]
        self.shared_heads = shared_heads
        self._seed = seed
        self._parts = _with_needed(parts)
        self._shape = (k.shape[0], k.shape[1])
        self._of_head: dict[str, Tensor] = {}
        last = (self.num_blocks - 1) * block_size
        self._tail = k.new_empty(*self._shape, block_size, k.shape[3], dtype=_wide_dtype(k))
        self._tail[:, :, : self.kv_len - last] = k[:, :, last:]
        self._stored = self._build(k)

    def _build(self, k: Tensor) -> dict[str, _Column]:
        num_blocks = self.num_blocks
        room = num_blocks // 8 + 16
        moments = None if _OF_LANDMARK.isdisjoint(self._parts) else _moments(k, self.block_size)
        self._metric = None if moments is None else moments.metric()
        rooms = _summarise_all(k, self.block_size, self._parts, room, self._metric)
        if "noise" in self._parts:
            noise = block_noise(self._seed, *self._shape, 0, num_blocks + room)
            rooms["noise"] = noise.to(k.device)
        columns = {name: _Column(tensor, num_blocks) for name, tensor in rooms.items()}
        if "drift" in self._parts:
            drift = centroid_drift(self._shared(columns["centroid"].tensor))
            columns["drift"] = _Column(torch.nn.functional.pad(drift, (0, room)), num_blocks)
        if "keys" in self._parts:
            columns["keys"] = _Column(k, self.kv_len)
        if moments is not None:
            points = columns["bulk"].tensor, columns["landmark"].tensor
            self._of_head["spread"] = spread_of_others(
                moments.scatter, *points, self.token_counts()
            )
        return columns

    @property
    def num_blocks(self) -> int:
        return -(-self.kv_len // self.block_size)

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

    def token_counts(self) -> Tensor:
        """How many tokens each block holds, `[num_blocks]`, float32."""
        counts = torch.full((self.num_blocks,), float(self.block_size), device=self.device)
        counts[-1] = self.kv_len - (self.num_blocks - 1) * self.block_size
        return counts

    def append(self, k_token: Tensor) -> None:
        """Take the keys of one more token, `[batch, num_kv_heads, 1, head_dim]`."""
        place = self.kv_len % self.block_size
        self._tail[:, :, place : place + 1] = k_token
        self.kv_len += 1
        last = self.num_blocks - 1
        keys = self._tail[:, :, : place + 1].unsqueeze(2)
        for name, tensor in summarise(keys, self._parts, self._metric).items():
            self._stored[name].put(last, tensor)
        self._append_rest(last, k_token)

    def _append_rest(self, last: int, k_token: Tensor) -> None:
        if "drift" in self._parts:
            centroids = self._shared(self["centroid"][:, :, max(0, last - 1) :])
            self._stored["drift"].put(last, centroid_drift(centroids)[..., -1:])
        if "noise" in self._parts and self.kv_len % self.block_size == 1 % self.block_size:
            noise = block_noise(self._seed, *self._shape, last, last + 1)
            self._stored["noise"].put(last, noise.to(k_token.device))
        if "keys" in self._parts:
            self._stored["keys"].put(self.kv_len - 1, k_token)

    def _shared(self, centroids: Tensor) -> Tensor:
        return centroids.mean(dim=1, keepdim=True) if self.shared_heads else centroids


class _Column:
    """A tensor that grows along its third size, in place while its spare room lasts."""

    def __init__(self, room: Tensor, length: int) -> None:
        self._room = room
        self._open_at(length - 1)

    def put(self, index: int, value: Tensor) -> None:
        """Set entry `index`: the last one, or the one after it."""
        if index != self._last:
            self._open_at(index)
        self._slot.copy_(value)

    def _open_at(self, index: int) -> None:
        if index >= self._room.shape[2]:
            self._grow(2 * index)
        self._last = index
        self._slot = self._room[:, :, index : index + 1]
        self.tensor = self._room[:, :, : index + 1]

    def _grow(self, places: int) -> None:
        room = self._room.new_empty(*self._room.shape[:2], places, *self._room.shape[3:])
        room[:, :, : self.tensor.shape[2]] = self.tensor
        self._room = room
