"""What every other room may use; the standard library only, nothing of ours, no torch.

Names looked up, whole numbers checked, files kept whole, progress shown, the version and the
defaults.
"""

from topokv.core.checks import check_counts, check_sizes
from topokv.core.choices import check_choice, choose
from topokv.core.files import (
    LARGEST_BYTES,
    claim,
    read_text,
    real,
    replacing,
    require_regular,
    require_room,
    shown,
    write_text,
)
from topokv.core.names import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LOCAL_BLOCKS,
    DEFAULT_SELECTOR,
    DEFAULT_SINK_BLOCKS,
    DTYPE_NAMES,
    SHARINGS,
)
from topokv.core.progress import Progress
from topokv.core.version import PACKAGE, __version__

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "DEFAULT_LOCAL_BLOCKS",
    "DEFAULT_SELECTOR",
    "DEFAULT_SINK_BLOCKS",
    "DTYPE_NAMES",
    "LARGEST_BYTES",
    "PACKAGE",
    "SHARINGS",
    "Progress",
    "__version__",
    "check_choice",
    "check_counts",
    "check_sizes",
    "choose",
    "claim",
    "read_text",
    "real",
    "replacing",
    "require_regular",
    "require_room",
    "shown",
    "write_text",
]
