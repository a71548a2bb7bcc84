"""The result file: what one run on one machine leaves behind, and how it is read back.

A file holds a `Run`: where it ran, what was asked, and a `Row` for each thing that was asked,
finished or not. A row is flat in JSON: the fields named below, and beside them one number (or
null) for each metric, so that a new metric needs no change here. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

Samples: TypeAlias = tuple[tuple[float, ...], ...]

Kind = Literal["bench", "quality", "tests"]
Status = Literal["ok", "skipped", "failed", "oom", "interrupted"]
Step = Literal["probe", "install", "verify", "collect", "test", "benchmark"]

KINDS: tuple[str, ...] = ("bench", "quality", "tests")
STATUSES: tuple[str, ...] = ("ok", "skipped", "failed", "oom", "interrupted")
STEPS: tuple[str, ...] = ("probe", "install", "verify", "collect", "test", "benchmark")
PROVENANCES: tuple[str, ...] = ("measured", "published")


class ResultFileError(ValueError):
    """A results file that is not one. The message carries the path to the bad field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measured cell, or the reason why there is none.

    The first group of fields says what was asked and is the row's identity: rows of two runs with
    the same `key` are the same measurement on two machines. None where a field does not apply.
    Metrics carry their unit in their name (`dense_sdpa_ms`); None is "does not apply here".
    Samples are the raw values behind a metric, one inner tuple for each process.
    """

    workload: str | None = None
    layer: int | None = None
    dtype: str | None = None
    batch: int | None = None
    seq_len: int | None = None
    num_q_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    selected_tokens: int | None = None
    block_size: int | None = None
    sink_blocks: int | None = None
    local_blocks: int | None = None
    selector: str | None = None
    sharing: str | None = None
    attention: str | None = None
    seed: int | None = None

    status: Status = "ok"
    step: Step | None = None
    reason: str | None = None
    dense_backend: str | None = None
    sparse_backend: str | None = None
    flags: tuple[str, ...] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    samples: Mapping[str, Samples] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What was asked, without what came out."""
        return tuple(getattr(self, name) for name in KEY_FIELDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of one backend: `environment` says on what machine and build, `settings` how."""

    kind: Kind
    backend: str
    created: str
    provenance: Literal["measured", "published"] = "measured"
    command: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()


TEXT_FIELDS = ("workload", "dtype", "selector", "sharing", "attention")
COUNT_FIELDS = (
    "layer",
    "batch",
    "seq_len",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "selected_tokens",
    "block_size",
    "sink_blocks",
    "local_blocks",
    "seed",
)
KEY_FIELDS: tuple[str, ...] = tuple(
    f.name for f in fields(Row) if f.name in TEXT_FIELDS or f.name in COUNT_FIELDS
)
ROW_FIELDS = frozenset(f.name for f in fields(Row))
