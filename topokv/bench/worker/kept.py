"""What each row's selection keeps of a real model's attention, beside its times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topokv.bench import Cell, Part, Plan, Settings, Source
from topokv.bench.worker.sources import capture_path
from topokv.inputs import load_capture
from topokv.quality import Question, Setting, arms_for, evaluate

# What is kept at (selected_tokens, selector).
Kept = Mapping[tuple[int | None, str | None], Mapping[str, float | None]]


def kept_by(source: Source, plan: Plan, settings: Settings) -> Kept:
    """Recall, output error and gap closed of every row of `source`; nothing on random keys.

    Over all captured queries of the layer, as `topokv quality` does. Budgets that the first of
    them doesn't have before it are left out: means over different queries can't be compared.
    """
    if source.layer is None:
        return {}
    cells = [cell for cell in plan.cells if cell.source == source]
    capture = load_capture(capture_path(source.kv), (source.layer,))
    fitting = [c.selected_tokens for c in cells if c.selected_tokens <= capture.positions[0] + 1]
    if not fitting:
        return {}
    names = dict.fromkeys(str(row.selector) for cell in cells for row in cell.rows)
    question = Question(
        arms=arms_for(list(names)),
        settings=tuple(Setting(settings.block_size, tokens) for tokens in fitting),
        sharing=settings.sharing,
        sink_blocks=settings.sink_blocks,
        local_blocks=settings.local_blocks,
        seed=settings.seed,
    )
    rows = evaluate(capture, question)
    # What a selector keeps in memory is counted where it is kept: by the benchmark itself.
    return {
        (row.selected_tokens, row.selector): {
            name: value for name, value in row.metrics.items() if name != "summary_bytes"
        }
        for row in rows
    }


def with_quality(cell: Cell, parts: Sequence[Part], kept: Kept) -> list[Part]:
    """`parts` with what each row's selection keeps, where that is known."""
    return [
        replace(part, facts={**part.facts, **kept.get((row.selected_tokens, row.selector), {})})
        for row, part in zip(cell.rows, parts, strict=True)
    ]
