"""The one door where keys, values and queries are checked, and the types that they may have."""

from topokv.tensors.dtypes import DTYPES, dtype_name, wide_dtype
from topokv.tensors.kv_cache import (
    KVCache,
    check_heads,
    check_query,
    check_tensor,
    group_queries,
    without_gradient,
)

__all__ = [
    "DTYPES",
    "KVCache",
    "check_heads",
    "check_query",
    "check_tensor",
    "dtype_name",
    "group_queries",
    "wide_dtype",
    "without_gradient",
]
