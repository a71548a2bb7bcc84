"""The results file: what one run on one machine leaves behind.

How it is written, read back with every field checked, and judged against another. No torch.
"""

from topokv.results.codec import (
    checked_environment,
    from_json,
    load_json,
    read,
    to_json,
    write,
    write_json,
)
from topokv.results.comparison import Compared, Comparison, compare, speedups_of
from topokv.results.record import (
    KEY_FIELDS,
    STATUSES,
    STEPS,
    ResultFileError,
    Row,
    Run,
    Status,
    Step,
)

__all__ = [
    "KEY_FIELDS",
    "STATUSES",
    "STEPS",
    "Compared",
    "Comparison",
    "ResultFileError",
    "Row",
    "Run",
    "Status",
    "Step",
    "checked_environment",
    "compare",
    "from_json",
    "load_json",
    "read",
    "speedups_of",
    "to_json",
    "write",
    "write_json",
]
