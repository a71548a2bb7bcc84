"""What is kept of each block of keys: from all of K in pieces, or from one block."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from topokv.machine import cache_bytes
from topokv.scheduling.landmarks import KeyMoments, squared_reach
from topokv.tensors import wide_dtype

# Parts that `summarise` takes from a block's keys, and how many vectors each is.
_VECTORS = {"centroid": 1, "box": 2, "points": 2, "variance": 0, "landmarks": 2}

# Those that begin with the mean key.
OF_MEAN = frozenset(_VECTORS) - {"box"}

# How many float32 bytes of keys are worked on at a time, so that nothing as large as K is made. On
# a CPU half of its last cache, which then holds the piece for all passes over it: less costs more
# operations, and each has both threads wait for one another. On a device what keeps it busy.
_CPU_PIECE_BYTES = (4 << 20, 16 << 20)
_DEVICE_PIECE_BYTES = 256 << 20


def summarise(
    keys: Tensor,
    into: Mapping[str, Tensor],
    mean: Tensor | None,
    metric: Tensor | None = None,
    work: Tensor | None = None,
) -> None:
    """Write what is kept of blocks of equal size to `into`, a tensor for each part.

    `keys` is `[batch, num_kv_heads, num_blocks, size, head_dim]`, `mean` their `token_means`, where
    a part is OF_MEAN. What is kept is `[batch, num_kv_heads, num_blocks, ...]`:

    centroid `[head_dim]`: the mean key. box `[2, head_dim]`: the minimum and the maximum of each
    dimension. points `[2, head_dim]`: the core and the witness; the witness is the key farthest
    (L2) from the mean, the earliest of equals, the core is the mean of the others (of a lone key,
    that key). variance `[]`: the mean over tokens of ‖k - mean‖². landmarks `[2, head_dim]`: as
    points, the distance taken by `metric` (see `landmarks`).

    `work` is a copy of `keys` of the wide type, to be overwritten.
    """
    wide = keys.to(wide_dtype(keys)) if work is None else work
    if "box" in into:
        # Two reductions: aminmax over any but the last size takes four times as long as both.
        low, high = into["box"].unbind(-2)
        torch.amin(wide, dim=-2, out=low)
        torch.amax(wide, dim=-2, out=high)
    if mean is None:
        return
    if "centroid" in into:
        into["centroid"].copy_(mean)
    if metric is not None:
        _set_apart(keys, mean, squared_reach(wide, mean, metric), into["landmarks"])
    if "points" in into or "variance" in into:
        distance = _squared_distance(wide, mean, work)
        if "points" in into:
            _set_apart(keys, mean, distance, into["points"])
        if "variance" in into:
            torch.mean(distance, dim=-1, out=into["variance"])


def token_means(keys: Tensor) -> Tensor:
    """The mean key of each block, `[batch, num_kv_heads, num_blocks, head_dim]`.

    `keys` is `[batch, num_kv_heads, num_blocks, size, head_dim]`, of the wide type. It is an
    average pool over an image of head_dim channels: on a CPU that reads at the speed of memory,
    which a reduction over tokens does not. It adds token after token however many blocks there are,
    so that a sum that grows by a token a step is, to the bit, that of a build from scratch.
    """
    return _pooled(keys, keys.shape[-2])


def token_sums(keys: Tensor) -> Tensor:
    """As `token_means`, not divided."""
    return _pooled(keys, 1)


def _pooled(keys: Tensor, divisor: int) -> Tensor:
    image = keys.flatten(0, 1).flatten(1, 2).mT.unsqueeze(2)
    pooled = avg_pool2d(image, (1, keys.shape[-2]), divisor_override=divisor)
    return torch.unflatten(pooled.squeeze(2).mT, 0, keys.shape[:2])


def _squared_distance(keys: Tensor, mean: Tensor, work: Tensor | None) -> Tensor:
    """Σ (k - mean)² of each key, `[batch, num_kv_heads, num_blocks, size]`; leaves it in `work`."""
    into = torch.empty_like(keys) if work is None else work
    # In one pass over the keys, where a difference and its square are two.
    torch.ops.aten.mse_loss.out(keys, mean.unsqueeze(-2), 0, out=into)
    return into.sum(dim=-1)


def _set_apart(keys: Tensor, mean: Tensor, distance: Tensor, into: Tensor) -> None:
    """Write the mean of each block's other keys and its farthest to `into [..., 2, head_dim]`.

    A lone key is both.
    """
    size, head_dim = keys.shape[-2:]
    others, far = into.unbind(-2)
    farthest = distance.argmax(dim=-1, keepdim=True).unsqueeze(-1)
    far.copy_(keys.gather(-2, farthest.expand(*far.shape[:-1], 1, head_dim)).squeeze(-2))
    if size == 1:
        others.copy_(mean)
    else:
        # The mean without its farthest: mean + (mean - far) / (size - 1), in one operation.
        torch.lerp(mean, far, -1 / (size - 1), out=others)


def summarise_all(
    k: Tensor,
    block_size: int,
    parts: Collection[str],
    metric: Tensor | None = None,
) -> dict[str, Tensor]:
    """What `summarise` keeps of all blocks of `k`, for those of `parts` that are of its kind.

    `k` is `[batch, num_kv_heads, kv_len, head_dim]`; a partial last block is one of its own size.
    """
    parts = _VECTORS.keys() & set(parts)
    if parts == {"centroid"} and k.dtype == wide_dtype(k) and k.device.type == "cpu":
        return {"centroid": _means_in_place(k, block_size)}
    kept = {part: _room(part, k, block_size) for part in parts}
    for first, keys, work in _pieces(k, block_size) if parts else ():
        mean = None if OF_MEAN.isdisjoint(parts) else token_means(work)
        last = first + keys.shape[2]
        into = {part: tensor[:, :, first:last] for part, tensor in kept.items()}
        summarise(keys, into, mean, metric, work)
    return kept


def _room(part: str, k: Tensor, block_size: int) -> Tensor:
    """Where a part of all blocks of `k` goes."""
    each = ((), (k.shape[3],), (2, k.shape[3]))[_VECTORS[part]]
    num_blocks = -(-k.shape[2] // block_size)
    return k.new_empty(*k.shape[:2], num_blocks, *each, dtype=wide_dtype(k))


def _means_in_place(k: Tensor, block_size: int) -> Tensor:
    """`token_means` of keys where they lie: all at once, or each head of a slice by itself."""
    whole, rest = _by_block(k, block_size)
    if whole.is_contiguous() and not rest.numel():
        return token_means(whole)
    full = whole.shape[2]
    kept = k.new_empty(*k.shape[:2], -(-k.shape[2] // block_size), k.shape[3])
    for request, head in product(*map(range, k.shape[:2])) if full else ():
        place = slice(request, request + 1), slice(head, head + 1)
        kept[place][:, :, :full] = token_means(whole[place])
    if rest.numel():
        kept[:, :, full:] = token_means(rest)
    return kept


def moments(k: Tensor, block_size: int) -> KeyMoments:
    """Means and scatter of all blocks of `k [batch, num_kv_heads, kv_len, head_dim]`."""
    found = KeyMoments()
    for _, _, work in _pieces(k, block_size):
        found.add(work)
    return found


def _by_block(k: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The full blocks, `[batch, num_kv_heads, n, size, head_dim]`, and the rest as one; views."""
    full = k.shape[2] // block_size
    whole = torch.unflatten(k[:, :, : full * block_size], 2, (full, block_size))
    return whole, k[:, :, full * block_size :].unsqueeze(2)


def _pieces(k: Tensor, block_size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Keys by block, the first block's index before them and a wide copy to overwrite after them.

    The copies share one buffer: take what you need before the next piece.
    """
    whole, rest = _by_block(k, block_size)
    full = whole.shape[2]
    step = max(1, min(full, _blocks_at_a_time(k, block_size)))
    buffer = k.new_empty(whole[:, :, :step].numel(), dtype=wide_dtype(k))
    for first in range(0, full, step):
        keys = whole[:, :, first : first + step]
        yield first, keys, buffer[: keys.numel()].view(keys.shape).copy_(keys)
    if rest.shape[3]:
        yield full, rest, rest.to(wide_dtype(k), copy=True)


def _blocks_at_a_time(k: Tensor, block_size: int) -> int:
    piece = _cpu_piece_bytes() if k.device.type == "cpu" else _DEVICE_PIECE_BYTES
    return piece // (k.shape[0] * k.shape[1] * block_size * k.shape[3] * 4)


@cache
def _cpu_piece_bytes() -> int:
    least, most = _CPU_PIECE_BYTES
    return min(most, max(least, (cache_bytes(3) or 0) // 2))
