"""Names that the command line, the library and the results share, and the defaults, each once."""

from __future__ import annotations

# How many schedules there are: one for a request, one for each KV head, one for each query head.
SHARINGS = ("request", "kv-head", "q-head")

DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64")

DEFAULT_SELECTOR = "drift"
DEFAULT_BLOCK_SIZE = 64
DEFAULT_SINK_BLOCKS = 1
DEFAULT_LOCAL_BLOCKS = 2
