"""TopoKV: a benchmark of sparse decode attention schedules.

The public names load on first use, so that importing the package never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topokv.core import __version__

if TYPE_CHECKING:
    from topokv.attention import dense_decode as dense_decode
    from topokv.attention import sparse_decode as sparse_decode
    from topokv.scheduling import Scheduler as Scheduler
    from topokv.scheduling import block_centroids as block_centroids
    from topokv.scheduling import candidate_rows as candidate_rows
    from topokv.scheduling import centroid_drift as centroid_drift
    from topokv.scheduling import expand_blocks as expand_blocks
    from topokv.scheduling import select_tokens as select_tokens
    from topokv.tensors import KVCache as KVCache


_HOME = {
    "KVCache": "topokv.tensors",
    "Scheduler": "topokv.scheduling",
    "block_centroids": "topokv.scheduling",
    "candidate_rows": "topokv.scheduling",
    "centroid_drift": "topokv.scheduling",
    "dense_decode": "topokv.attention",
    "expand_blocks": "topokv.scheduling",
    "select_tokens": "topokv.scheduling",
    "sparse_decode": "topokv.attention",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'topokv' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
