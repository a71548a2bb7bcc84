"""TopoKV: a benchmark of sparse decode attention schedules.

The public names load on first use, so that importing the package never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topokv.attention import dense_decode as dense_decode
    from topokv.attention import sparse_decode as sparse_decode
    from topokv.blocks import block_centroids as block_centroids
    from topokv.blocks import centroid_drift as centroid_drift
    from topokv.cache import KVCache as KVCache
    from topokv.schedule import candidate_rows as candidate_rows
    from topokv.schedule import expand_blocks as expand_blocks
    from topokv.scheduler import Scheduler as Scheduler
    from topokv.scheduler import select_tokens as select_tokens

__version__ = "0.1.0"

_HOME = {
    "KVCache": "topokv.cache",
    "Scheduler": "topokv.scheduler",
    "block_centroids": "topokv.blocks",
    "candidate_rows": "topokv.schedule",
    "centroid_drift": "topokv.blocks",
    "dense_decode": "topokv.attention",
    "expand_blocks": "topokv.schedule",
    "select_tokens": "topokv.scheduler",
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
