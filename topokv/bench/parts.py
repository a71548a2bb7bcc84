"""A part: what one process found for one row, as it travels from the worker to the parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from topokv.results import Status, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process's share of a row.

    `samples` are times in ms by arm, one a round; rounds of arms that are compared line up. `facts`
    are single numbers, None where the platform cannot tell.
    """

    status: Status = "ok"
    step: Step | None = None
    reason: str | None = None
    dense_backend: str | None = None
    sparse_backend: str | None = None
    samples: Mapping[str, list[float]] = field(default_factory=dict)
    facts: Mapping[str, float | None] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values: times to the nanosecond, and None for what is no number."""
        facts = {n: v if v is None or isfinite(v) else None for n, v in self.facts.items()}
        samples = {n: [round(time, 6) for time in times] for n, times in self.samples.items()}
        return asdict(self) | {"facts": facts, "samples": samples}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Part:
        return Part(**{**data, "flags": tuple(data.get("flags", ()))})


def failed(reason: str, status: Status = "failed") -> Part:
    """A part that says why there is nothing."""
    return Part(status=status, step="benchmark", reason=reason)
