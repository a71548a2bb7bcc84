"""KVCache: the one door where keys, values and queries are checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """Keys and values of one layer, both `[batch, num_kv_heads, kv_len, head_dim]`.

    Raises TypeError for what is not a floating-point tensor, ValueError for shapes, types or
    devices that do not fit together; the tensors are kept as they are, never copied, but detached:
    nothing here is differentiated.
    """

    k: Tensor
    v: Tensor

    def __post_init__(self) -> None:
        check_tensor("k", self.k, "[batch, num_kv_heads, kv_len, head_dim]")
        check_tensor("v", self.v, "[batch, num_kv_heads, kv_len, head_dim]")
        if self.k.shape != self.v.shape:
            raise ValueError(f"v must have the shape of k {_shape(self.k)}, got {_shape(self.v)}")
        check_alike("v", self.v, "k", self.k)
        object.__setattr__(self, "k", without_gradient(self.k))
        object.__setattr__(self, "v", without_gradient(self.v))

    @property
    def batch(self) -> int:
        return self.k.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def kv_len(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        return self.k.dtype

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V together: what one dense decode reads."""
        return self.k.numel() * self.k.element_size() * 2


def check_tensor(name: str, tensor: Tensor, layout: str) -> None:
    """Raise unless `tensor` is a floating-point tensor of the four sizes of `layout`, none zero."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be of a floating-point type, got {tensor.dtype}")
    if tensor.ndim != 4 or 0 in tensor.shape:
        raise ValueError(f"{name} must be {layout}, every size at least 1, got {_shape(tensor)}")


def check_alike(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless both tensors have one dtype and lie on one device."""
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name} must have {other_name}'s dtype {other.dtype}, got {tensor.dtype}")
    if tensor.device != other.device:
        raise ValueError(
            f"{name} must be on {other_name}'s device {other.device}, got {tensor.device}"
        )


def check_query(q: Tensor, k: Tensor) -> None:
    """Raise unless `q` is `[batch, num_q_heads, 1, head_dim]` and fits `k`, heads a multiple."""
    check_tensor("q", q, "[batch, num_q_heads, 1, head_dim]")
    check_alike("q", q, "k", k)
    if q.shape[2] != 1:
        raise ValueError(f"q must hold one token (q_len 1), got q_len {q.shape[2]}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q must have k's batch and head_dim {_shape(k)}, got {_shape(q)}")
    check_heads(q.shape[1], k.shape[1])


def check_heads(num_q_heads: int, num_kv_heads: int) -> None:
    """Raise unless every KV head serves the same number of query heads."""
    if num_q_heads % num_kv_heads:
        raise ValueError(
            f"num_q_heads ({num_q_heads}) must be a multiple of num_kv_heads ({num_kv_heads})"
        )


def group_queries(q: Tensor, num_kv_heads: int) -> Tensor:
    """`q [batch, num_q_heads, 1, head_dim]` as `[batch, num_kv_heads, group, head_dim]`, a view.

    Query head h belongs to KV head h // group, the layout of grouped-query attention everywhere.
    """
    q = without_gradient(q)
    return q.reshape(q.shape[0], num_kv_heads, q.shape[1] // num_kv_heads, q.shape[3])


def without_gradient(tensor: Tensor) -> Tensor:
    """The tensor, detached where it wants a gradient: buffers that are written to can't give it."""
    return tensor.detach() if tensor.requires_grad else tensor


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
