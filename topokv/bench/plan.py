"""What is to be measured, checked before any tensor is allocated; no torch.

A cell is one (workload, layer, budget): everything that reads the same K and V is measured in the
same rounds. A cell's rows are its selectors times the ways to attend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from topokv.core import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LOCAL_BLOCKS,
    DEFAULT_SINK_BLOCKS,
    DTYPE_NAMES,
    SHARINGS,
    check_choice,
)
from topokv.machine import GRAPHS
from topokv.results import KEY_FIELDS, Row

GAUSSIAN = "gaussian"
SAMPLE = "sample"
# The pair as it was first published; it stands in every table, whatever else is measured.
PUBLISHED_ATTENTION = "gather"
# On random keys no selector can be better than another: two are enough to time the two kinds.
GAUSSIAN_SELECTORS = ("drift", "witness")
# On a real cache: the published rule, two null models, three that ask the query, and the bound.
REAL_SELECTORS = (
    "drift",
    "streaming",
    "random",
    "quest",
    "witness",
    "discriminant",
    "oracle",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a run was asked to do; None is "what the workload or the machine says"."""

    kv: tuple[str, ...] = (GAUSSIAN, SAMPLE)
    layers: tuple[int, ...] = ()
    seq_len: int = 16384
    selected_tokens: tuple[int, ...] = (128, 256, 512, 1024)
    heads: int = 16
    kv_heads: int | None = None
    head_dim: int = 64
    batch: int = 1
    block_size: int = DEFAULT_BLOCK_SIZE
    sink_blocks: int = DEFAULT_SINK_BLOCKS
    local_blocks: int = DEFAULT_LOCAL_BLOCKS
    dtype: str | None = None
    selectors: tuple[str, ...] = ()
    sharing: str | None = None
    attention: tuple[str, ...] = ()
    rounds: int = 50
    warmup: int = 3
    processes: int = 5
    max_seconds: float = 12.0
    device: str = "auto"
    require_device: bool = False
    graphs: str = "auto"
    seed: int = 0
    threads: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Settings:
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return Settings(**known)

    @property
    def num_kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def cell_seconds(self) -> float:
        """One process's share of a row's time cap."""
        return self.max_seconds / self.processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A workload that is not loaded yet: its name, layer and sizes, and where it comes from."""

    name: str
    kv: str
    layer: int | None
    batch: int
    num_q_heads: int
    num_kv_heads: int
    kv_len: int
    head_dim: int

    def cache_bytes(self, dtype_bytes: int) -> int:
        """Bytes of K and V together."""
        tokens = self.batch * self.num_kv_heads * self.kv_len
        return 2 * tokens * self.head_dim * dtype_bytes


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload and one budget; `rows` say what is asked."""

    source: Source
    selected_tokens: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells in the order in which they are measured, and what was left out of the grid."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def check(settings: Settings) -> None:
    """Raise ValueError, naming the flag's value and its rule, unless all sizes are usable."""
    sizes = ("seq_len", "heads", "head_dim", "batch", "block_size", "rounds", "processes")
    for name in sizes:
        _at_least(name, getattr(settings, name), 1)
    for name in ("kv_heads", "threads"):
        if getattr(settings, name) is not None:
            _at_least(name, getattr(settings, name), 1)
    for name in ("sink_blocks", "local_blocks", "warmup", "seed"):
        _at_least(name, getattr(settings, name), 0)
    for name in ("selected_tokens", "layers"):
        for value in getattr(settings, name):
            _at_least(name, value, 1 if name == "selected_tokens" else 0)
    if not 0 < settings.max_seconds < float("inf"):
        raise ValueError(f"max_seconds must be above 0 and finite, got {settings.max_seconds}")
    if settings.seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {settings.seed}")
    _check_heads(settings)
    _check_choices(settings)
    if set(settings.kv) == {GAUSSIAN}:
        budgets(settings, settings.seq_len)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_heads(settings: Settings) -> None:
    if settings.heads % settings.num_kv_heads:
        raise ValueError(
            f"num_q_heads ({settings.heads}) must be a multiple of "
            f"num_kv_heads ({settings.num_kv_heads})"
        )


def _check_choices(settings: Settings) -> None:
    if settings.dtype is not None:
        check_choice("dtype", settings.dtype, DTYPE_NAMES)
    if settings.sharing is not None:
        check_choice("sharing", settings.sharing, SHARINGS)
    check_choice("graphs", settings.graphs, GRAPHS)
    kind, _, index = settings.device.partition(":")
    if kind in ("cuda", "rocm") and (not index or index.isdecimal()):
        return
    if settings.device not in ("auto", "cpu"):
        raise ValueError(
            f"unknown device {settings.device!r}; expected one of 'auto', 'cpu', 'cuda', 'cuda:0', "
            "…, 'rocm', 'rocm:0', …"
        )


def gaussian_source(settings: Settings) -> Source:
    """The random workload of the run's sizes."""
    return Source(
        name=GAUSSIAN,
        kv=GAUSSIAN,
        layer=None,
        batch=settings.batch,
        num_q_heads=settings.heads,
        num_kv_heads=settings.num_kv_heads,
        kv_len=settings.seq_len,
        head_dim=settings.head_dim,
    )


def budgets(settings: Settings, kv_len: int) -> list[int]:
    """The budgets that fit a cache, without doubles; ValueError where none does."""
    fitting = [tokens for tokens in dict.fromkeys(settings.selected_tokens) if tokens <= kv_len]
    if not fitting:
        least = min(settings.selected_tokens)
        raise ValueError(
            f"selected_tokens {least} exceeds seq_len {kv_len}; no row of the grid is left"
        )
    return fitting


def grid(
    settings: Settings,
    sources: Sequence[Source],
    *,
    dtype: str,
    selectors: Sequence[str],
    sharing_of: Callable[[str], str],
    attention: Sequence[str],
) -> Plan:
    """The plan of a run over `sources`.

    `selectors` are those that a real cache gets unless told; `sharing_of` gives a selector's own
    sharing and raises ValueError for an unknown one. Budgets larger than a source's cache are left
    out with a note; ValueError where none is left.
    """
    for name in settings.attention:
        check_choice("attention", name, attention)
    longest = max(source.kv_len for source in sources)
    budgets(settings, longest)
    cells = []
    for source in sources:
        by_default = GAUSSIAN_SELECTORS if source.kv == GAUSSIAN else selectors
        names = dict.fromkeys(settings.selectors or by_default)
        sharing = {name: settings.sharing or sharing_of(name) for name in names}
        cells += _cells(settings, source, _template(settings, source, dtype), sharing)
    return Plan(tuple(cells), tuple(_notes(settings, sources)))


def _cells(
    settings: Settings, source: Source, template: Row, sharing: Mapping[str, str]
) -> list[Cell]:
    """One source's cells; `sharing` is that of each of its selectors."""
    paths = (PUBLISHED_ATTENTION, *settings.attention)
    return [
        Cell(source, tokens, _rows(template, tokens, sharing, paths))
        for tokens in dict.fromkeys(settings.selected_tokens)
        if tokens <= source.kv_len
    ]


def _notes(settings: Settings, sources: Sequence[Source]) -> list[str]:
    lengths = {source.name: source.kv_len for source in sources}
    return [
        f"{name}: selected_tokens {tokens} exceeds seq_len {kv_len}; left out of the grid"
        for name, kv_len in lengths.items()
        for tokens in dict.fromkeys(settings.selected_tokens)
        if tokens > kv_len
    ]


def identity(row: Row) -> dict[str, Any]:
    """What a row was asked for, as plain values."""
    return {name: getattr(row, name) for name in KEY_FIELDS}


def planned(asked: Mapping[str, Any]) -> Row:
    """The row of an `identity`, not measured yet."""
    known: dict[str, Any] = {name: asked.get(name) for name in KEY_FIELDS}
    return Row(**known, status="interrupted", step="benchmark", reason="not measured yet")


def _template(settings: Settings, source: Source, dtype: str) -> Row:
    return Row(
        workload=source.name,
        layer=source.layer,
        dtype=dtype,
        batch=source.batch,
        seq_len=source.kv_len,
        num_q_heads=source.num_q_heads,
        num_kv_heads=source.num_kv_heads,
        head_dim=source.head_dim,
        block_size=settings.block_size,
        sink_blocks=settings.sink_blocks,
        local_blocks=settings.local_blocks,
        seed=settings.seed,
    )


def _rows(
    template: Row, tokens: int, selectors: Mapping[str, str], attention: Sequence[str]
) -> tuple[Row, ...]:
    return tuple(
        replace(template, selected_tokens=tokens, selector=name, sharing=sharing, attention=path)
        for name, sharing in selectors.items()
        for path in dict.fromkeys(attention)
    )
