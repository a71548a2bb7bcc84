"""A quality run as text: selectors down, block sizes and budgets across, a table for each text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tabulate import tabulate

from topokv.results import Row

# Narrower terminals get neither intervals nor what selectors cost.
FULL_WIDTH = 120

LEGEND = """\
Gap closed in %, by block size: budget. 0 is random choice, 100 the oracle's.
~ chance: can't be told from random. < worse than random.
"""
WIDE_LEGEND = """\
In brackets the 95 % interval over captured queries. bytes: what is read of a block at each step.
Last column: recall against sinks and newest tokens alone, over the settings; ? can't tell.
"""


def quality_table(rows: Sequence[Row], width: int = FULL_WIDTH) -> str:
    """All rows of a quality run, a table for each workload, and how to read them."""
    workloads = dict.fromkeys(row.workload for row in rows)
    wide = width >= FULL_WIDTH
    tables = [_table(w, [r for r in rows if r.workload == w], wide) for w in workloads]
    return "\n".join([*tables, LEGEND + (WIDE_LEGEND if wide else "")])


def _table(workload: str | None, rows: Sequence[Row], wide: bool) -> str:
    settings = list(dict.fromkeys((row.block_size, row.selected_tokens) for row in rows))
    lines = []
    for selector in dict.fromkeys(row.selector for row in rows):
        cells = {(r.block_size, r.selected_tokens): r for r in rows if r.selector == selector}
        sharing = next(iter(cells.values())).sharing
        shown = [_cell(cells[setting], wide) if setting in cells else "" for setting in settings]
        judged = list(cells.values())
        told = [selector, sharing, _bytes(judged), *shown, _against_streaming(judged)]
        lines.append(told if wide else [selector, *shown])
    gaps = [f"{block}: {tokens}" for block, tokens in settings]
    headings = (
        ["selector", "schedule", "bytes", *gaps, "streaming"] if wide else ["selector", *gaps]
    )
    queries = len(rows[0].samples.get("recall", ((),))[0])
    title = f"{workload}: {rows[0].seq_len} tokens, {queries} captured queries"
    table = tabulate(lines, headings, disable_numparse=True)
    return f"{title}\n\n{table}\n"


def _bytes(rows: Sequence[Row]) -> str:
    """What is read of a block of one KV head at every step; it may depend on the block size."""
    read = {row.block_size: row.metrics.get("summary_bytes") for row in rows}
    shape = rows[0]
    blocks = {size: -(-(shape.seq_len or 0) // (size or 1)) for size in read}
    heads = shape.num_kv_heads or 1
    return "/".join(dict.fromkeys(f"{(read[s] or 0) / (blocks[s] * heads):.0f}" for s in read))


def _cell(row: Row, wide: bool) -> str:
    gap, low, high = (row.metrics.get(f"gap_closed{end}") for end in ("", "_low", "_high"))
    if gap is None or low is None or high is None:
        return "none scored"
    if row.selector in ("random", "oracle"):
        return _percent(gap)
    interval = f" ({_percent(low)}…{_percent(high)})" if wide else ""
    marks = {"cannot tell from random": " ~", "worse than random": " <"}
    return _percent(gap) + interval + "".join(marks.get(flag, "") for flag in row.flags)


def _percent(fraction: float) -> str:
    # Adding 0 makes a rounded -0 a plain 0.
    return f"{round(100 * fraction) + 0:d}"


def _against_streaming(rows: Sequence[Row]) -> str:
    """How often the selector was better, worse, or neither: `4 better, 1 ?`."""
    ends = {"better than streaming": "better", "worse than streaming": "worse"}
    ends["cannot tell from streaming"] = "?"
    said = Counter(ends[flag] for row in rows for flag in row.flags if flag in ends)
    return ", ".join(f"{count} {word}" for word, count in sorted(said.items(), reverse=True))
