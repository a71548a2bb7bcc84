"""From keys and a query to the tokens to attend.

What is kept of each block, selectors that score blocks by it, and the one place where sinks,
locals, budget and cut are applied for all of them.
"""

from topokv.scheduling.block_summary import BlockSummary, block_centroids, centroid_drift
from topokv.scheduling.budget import Budget, token_budget
from topokv.scheduling.candidate_rows import candidate_row, candidate_rows
from topokv.scheduling.mixture import Mixture, mixture_of
from topokv.scheduling.schedule import (
    CandidateSchedule,
    check_sharing,
    expand_blocks,
    schedule_tokens,
)
from topokv.scheduling.scheduler import Scheduler, select_tokens
from topokv.scheduling.selectors import SELECTORS, Selector, selector_named

__all__ = [
    "SELECTORS",
    "BlockSummary",
    "Budget",
    "CandidateSchedule",
    "Mixture",
    "Scheduler",
    "Selector",
    "block_centroids",
    "candidate_row",
    "candidate_rows",
    "centroid_drift",
    "check_sharing",
    "expand_blocks",
    "mixture_of",
    "schedule_tokens",
    "select_tokens",
    "selector_named",
    "token_budget",
]
