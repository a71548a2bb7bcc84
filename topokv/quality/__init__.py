"""What a selection keeps of single layers of a real model's attention, with intervals."""

from topokv.quality.evaluation import DEFAULT_SETTINGS, Question, Setting, arms_for, evaluate
from topokv.quality.measures import DenseReference, measure

__all__ = [
    "DEFAULT_SETTINGS",
    "DenseReference",
    "Question",
    "Setting",
    "arms_for",
    "evaluate",
    "measure",
]
