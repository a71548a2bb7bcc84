"""Every column that a table can show: to add one, add an entry to COLUMNS.

The order is the order in a table, and the first five keep the names and places that they had when
this benchmark was first proposed. The reference in docs/report.md is derived from this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from topokv.core import choose
from topokv.report.entries import Cell, Entry
from topokv.report.notes import is_judgement
from topokv.report.numbers import shown

# What a column tells: what was asked, where it ran, a number that came out, or how it ended.
Role = Literal["asked", "where", "number", "outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: how to get its cell from an entry, how to write it, and what it means.

    `unit` is one of "", "count", "ms", "x", "%", "change", "bytes", "GB/s"; "%" and "change" cells
    are fractions, written as percent only where a person reads them. `digits` are significant ones.
    A narrow table shows a column only where `narrow` and some row has a cell. `for_people` columns
    repeat others and stay out of CSV and JSON. `of_selection` columns depend on what was selected,
    not on the machine.
    """

    name: str
    meaning: str
    role: Role
    value: Callable[[Entry], Cell]
    unit: str = ""
    digits: int = 3
    narrow: bool = False
    for_people: bool = False
    of_selection: bool = False

    def show(self, entry: Entry) -> str:
        """The cell as a person reads it; empty where there is none."""
        return self.text(self.value(entry))

    def text(self, cell: Cell) -> str:
        """A cell of this column as a person reads it."""
        return shown(cell, self.unit, self.digits)

    @property
    def is_text(self) -> bool:
        return self.role != "number" and self.unit != "count"


def asked(name: str, meaning: str, unit: str = "") -> Column:
    """A column of what was asked: a field of the row."""

    def value(entry: Entry) -> Cell:
        cell: Cell = getattr(entry.row, name)
        return cell

    return Column(name=name, meaning=meaning, role="asked", value=value, unit=unit, narrow=True)


def number(
    name: str, meaning: str, unit: str = "", *, narrow: bool = False, of_selection: bool = False
) -> Column:
    """A column of what came out: a metric of the row."""

    def value(entry: Entry) -> Cell:
        return entry.row.metrics.get(name)

    return Column(
        name=name,
        meaning=meaning,
        role="number",
        value=value,
        unit=unit,
        narrow=narrow,
        of_selection=of_selection,
    )


def kept(name: str, meaning: str, unit: str = "", *, narrow: bool = False) -> Column:
    """A column of what the selection keeps of the attention, the same on every machine."""
    return number(name, meaning, unit, narrow=narrow, of_selection=True)


def where(name: str, meaning: str, key: str | None = None) -> Column:
    """A column of where it ran: one field of the run's environment."""

    def value(entry: Entry) -> Cell:
        found = entry.run.environment.get(key or name)
        return None if found is None else str(found)

    return Column(name=name, meaning=meaning, role="where", value=value)


def of_run(name: str, meaning: str, value: Callable[[Entry], Cell]) -> Column:
    """A column of where it ran that is not part of the environment."""
    return Column(name=name, meaning=meaning, role="where", value=value)


def outcome(name: str, meaning: str, value: Callable[[Entry], Cell]) -> Column:
    """A column of how the row ended."""
    return Column(name=name, meaning=meaning, role="outcome", value=value)


def _interval(entry: Entry) -> Cell:
    low, high = entry.metric("speedup_low"), entry.metric("speedup_high")
    return None if low is None or high is None else f"{shown(low)}–{shown(high)}"


def _change(entry: Entry) -> Cell:
    compared = entry.compared
    if compared is None or not compared.base or not compared.new:
        return None
    return compared.new / compared.base - 1


COLUMNS: tuple[Column, ...] = (
    asked("seq_len", "tokens in the K/V cache, kv_len", "count"),
    asked("selected_tokens", "tokens that the sparse arm attends, exactly", "count"),
    number(
        "dense_sdpa_ms",
        "one decode step's dense attention, caches cold: what a step meets between other layers",
        "ms",
        narrow=True,
    ),
    number(
        "sparse_selected_ms",
        "gathering the selected tokens and attending them, caches cold; selection is not in it",
        "ms",
        narrow=True,
    ),
    number("speedup", "dense over sparse, median of paired ratios", "x", narrow=True),
    kept(
        "recall",
        "share of the attention mass that the selected tokens hold, mean over heads and queries; "
        "only for a real model's cache",
        "%",
        narrow=True,
    ),
    asked("selector", "what scored the blocks"),
    number(
        "step_speedup",
        "dense over sparse plus everything that a step must also run: summary update, scoring, "
        "top blocks, expansion",
        "x",
        narrow=True,
    ),
    Column(
        name="interval",
        meaning="95 % interval of the speedup, from the medians of several fresh processes; none "
        "for one process",
        role="number",
        value=_interval,
        narrow=True,
        for_people=True,
    ),
    kept(
        "gap_closed",
        "how far recall comes from random choice (0) towards the oracle's (100 %), same budget",
        "%",
        narrow=True,
    ),
    kept("gap_closed_low", "lower end of the 95 % interval of gap_closed", "%"),
    kept("gap_closed_high", "upper end of the 95 % interval of gap_closed", "%"),
    kept("recall_worst", "recall of the head and query that kept least", "%"),
    kept("output_error", "relative error of the attention output, mean over heads"),
    kept("output_error_worst", "relative error of the attention output, worst head"),
    Column(
        name="change",
        meaning="speedup over the baseline's, less 1: below 0 is slower (with --baseline)",
        role="number",
        value=_change,
        unit="change",
        narrow=True,
    ),
    Column(
        name="verdict",
        meaning="FAST or SLOW where the whole interval of the change says so, SAME where it lies "
        "close to none, ???? where it cannot tell (with --baseline)",
        role="outcome",
        value=lambda entry: entry.compared.name if entry.compared else None,
        narrow=True,
    ),
    Column(
        name="judged",
        meaning="whether the selector keeps more than random choice and than streaming, beyond "
        "chance: better, worse or cannot tell (runs of topokv quality)",
        role="outcome",
        value=lambda entry: ", ".join(filter(is_judgement, entry.row.flags)),
        narrow=True,
        for_people=True,
    ),
    asked("workload", "gaussian (random keys) or the capture of a real model"),
    asked("layer", "the layer of the captured model", "count"),
    asked("block_size", "tokens in a block", "count"),
    asked("attention", "how the sparse arm gathers and attends"),
    asked("sharing", "who shares one schedule: request, kv-head or q-head"),
    asked("dtype", "type of q, K and V"),
    asked("batch", "requests decoded together", "count"),
    asked("num_q_heads", "query heads", "count"),
    asked("num_kv_heads", "key/value heads; fewer than query heads under GQA", "count"),
    asked("head_dim", "size of one head", "count"),
    asked("sink_blocks", "first blocks that are always attended", "count"),
    asked("local_blocks", "newest blocks that are always attended", "count"),
    asked("seed", "seed of the random inputs", "count"),
    number("speedup_low", "lower end of the interval of speedup", "x"),
    number("speedup_high", "upper end of the interval of speedup", "x"),
    number("summary_ms", "building the block summaries from all of K, once a sequence", "ms"),
    number("update_ms", "adding one token to the block summaries, every step", "ms"),
    number("score_ms", "scoring, top blocks and expansion to tokens, every step", "ms"),
    number("step_ms", "sparse_selected_ms plus update_ms plus score_ms", "ms"),
    number("break_even_steps", "steps after which the summary has paid for itself", "count"),
    number("ceiling", "what speedup cannot pass: seq_len over selected_tokens", "x"),
    number("density", "share of K and V that the sparse arm reads", "%"),
    number("dense_warm_ms", "dense attention with its inputs left in cache", "ms"),
    number("sparse_warm_ms", "sparse attention with its inputs left in cache", "ms"),
    number("warm_speedup", "dense over sparse with inputs left in cache", "x"),
    number(
        "wall_speedup", "dense over sparse by the host's clock, starting the kernels included", "x"
    ),
    number("graph_speedup", "dense over sparse replayed as CUDA graphs: no starting cost", "x"),
    number("dense_wall_ms", "dense attention by the host's clock", "ms"),
    number("sparse_wall_ms", "sparse attention by the host's clock", "ms"),
    number("dense_graph_ms", "dense attention as a CUDA graph, buffers rotated", "ms"),
    number("sparse_graph_ms", "sparse attention as a CUDA graph, buffers rotated", "ms"),
    number("aa_ratio", "dense over dense on the same buffers: how far noise alone moves a ratio"),
    number("sparse_p50_ms", "median of the sparse arm's samples", "ms"),
    number("sparse_p90_ms", "90th percentile of the sparse arm's samples", "ms"),
    number("sparse_p99_ms", "99th percentile of the sparse arm's samples", "ms"),
    number("effective_gbps", "bytes of K and V that dense reads, over its time", "GB/s"),
    number("sparse_gbps", "bytes of the selected K and V, over the sparse arm's time", "GB/s"),
    number("copy_ms", "a plain copy of K and V", "ms"),
    number("read_ms", "a plain read of K and V", "ms"),
    number(
        "copy_gbps",
        "a plain copy on the same machine, bytes read and bytes written both counted",
        "GB/s",
    ),
    number("read_gbps", "a plain read of the same size on the same machine", "GB/s"),
    number("copy_share", "effective_gbps over copy_gbps", "%"),
    number("read_share", "effective_gbps over read_gbps", "%"),
    number("summary_bytes", "what the selector keeps beside the K cache", "bytes"),
    number("peak_memory_bytes", "most memory the row's process held", "bytes"),
    number("minor_faults", "page faults a call of the sparse arm; above 1 it allocates"),
    number("foreign_load", "processor time that other programs took meanwhile", "%"),
    number("clock_share", "the GPU's clock over its default", "%"),
    number("num_processes", "fresh processes behind the numbers", "count"),
    outcome("dense_backend", "SDPA backend of the dense arm", lambda e: e.row.dense_backend),
    outcome("sparse_backend", "SDPA backend of the sparse arm", lambda e: e.row.sparse_backend),
    outcome("status", "ok, skipped, failed, oom or interrupted", lambda e: e.row.status),
    outcome("step", "the step at which the row ended, if it did not finish", lambda e: e.row.step),
    outcome("reason", "why the row did not finish", lambda e: e.row.reason),
    outcome("flags", "what to know before trusting the row", lambda e: "; ".join(e.row.flags)),
    of_run("kind", "bench, quality or tests", lambda e: e.run.kind),
    of_run("backend", "cpu, cuda or rocm", lambda e: e.run.backend),
    where("device", "the GPU's name, or the CPU's model"),
    where("torch", "version of torch"),
    where("torch_build", "build of torch: its local version tag"),
    where("fingerprint", "tells machines and builds apart; verdicts never cross it"),
    of_run("provenance", "measured here, or published elsewhere", lambda e: e.run.provenance),
    of_run("created", "when the run began", lambda e: e.run.created),
    of_run("source", "the file that the row was read from", lambda e: e.source),
)

FIRST_FIVE = ("seq_len", "selected_tokens", "dense_sdpa_ms", "sparse_selected_ms", "speedup")


def columns_for(entries: Iterable[Entry]) -> tuple[Column, ...]:
    """COLUMNS, and a plain column for each metric of `entries` that has no entry there yet."""
    known = {column.name for column in COLUMNS}
    extra = {name for entry in entries for name in entry.row.metrics} - known
    return (*COLUMNS, *(number(name, "a metric without a description") for name in sorted(extra)))


def named(names: Iterable[str], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns of those names, in the order asked; ValueError for an unknown one."""
    return tuple(choose("column", name, columns) for name in names)
