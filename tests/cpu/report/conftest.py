"""Runs with plausible numbers, made by rule: no measurement stands behind them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topokv import cli
from topokv.record import Row, Run, write

# recall at 128, 256, 512 and 1,024 of 2,048 tokens, by selector.
RECALL = {
    "drift": (0.41, 0.47, 0.55, 0.68),
    "random": (0.41, 0.46, 0.54, 0.67),
    "streaming": (0.41, 0.62, 0.74, 0.85),
    "witness": (0.41, 0.78, 0.88, 0.95),
    "oracle": (0.41, 0.82, 0.91, 0.97),
}
BUDGETS = (128, 256, 512, 1024)
ENVIRONMENT = {
    "cpu": {"device": "Example CPU 2.2 GHz", "torch": "2.13.0", "torch_build": "cpu", "threads": 2},
    "cuda": {"device": "NVIDIA Example 24 GB", "torch": "2.13.0", "torch_build": "cu130"},
    "rocm": {"device": "AMD Example 16 GB", "torch": "2.13.0", "torch_build": "rocm7.2"},
}


def make_row(selector: str, index: int, *, real: bool = False, pace: float = 1.0) -> Row:
    """A row of the published grid at the budget of that index; `pace` is the machine's speed."""
    budget = BUDGETS[index]
    seq_len = 2048 if real else 16384
    dense, speedup = 5.0 / pace, 0.32 * seq_len / budget
    metrics: dict[str, float | None] = {
        "dense_sdpa_ms": dense,
        "sparse_selected_ms": dense / speedup,
        "speedup": speedup,
        "speedup_low": speedup * 0.98,
        "speedup_high": speedup * 1.02,
        "step_speedup": speedup / 2,
        "summary_ms": 1.5 / pace,
        "score_ms": 0.4 / pace,
        "update_ms": 0.02 / pace,
        "copy_share": 0.8,
        "ceiling": seq_len / budget,
    }
    if real:
        recall, chance, best = (RECALL[s][index] for s in (selector, "random", "oracle"))
        closed = (recall - chance) / (best - chance) if best > chance else None
        metrics |= {"recall": recall, "output_error": 1 - recall, "gap_closed": closed}
    return Row(
        workload="sample" if real else "gaussian",
        layer=7 if real else None,
        dtype="float32",
        batch=1,
        seq_len=seq_len,
        num_q_heads=9 if real else 16,
        num_kv_heads=3 if real else 16,
        head_dim=64,
        selected_tokens=budget,
        block_size=64,
        sink_blocks=1,
        local_blocks=2,
        selector=selector,
        sharing="request" if selector == "drift" else "kv-head",
        attention="gather",
        seed=0,
        dense_backend="FLASH",
        sparse_backend="FLASH",
        flags=(*(() if real else ("gaussian",)), *(("no-scored-block",) if index == 0 else ())),
        metrics=metrics,
    )


def make_run(backend: str = "cpu", **changes: Any) -> Run:
    """A bench run of both workloads; `changes` replace fields of Run, `fingerprint` and `pace`."""
    pace = changes.pop("pace", {"cpu": 1.0, "cuda": 20.0, "rocm": 15.0}[backend])
    fingerprint = changes.pop("fingerprint", f"{backend}0123456789"[:12])
    rows = [make_row(s, i, pace=pace) for s in ("drift", "witness") for i in range(4)]
    rows += [make_row(s, i, real=True, pace=pace) for s in RECALL for i in range(4)]
    fields: dict[str, Any] = {
        "kind": "bench",
        "backend": backend,
        "created": "2026-12-01T10:00:00+00:00",
        "environment": ENVIRONMENT[backend] | {"fingerprint": fingerprint},
        "rows": tuple(rows),
    }
    return Run(**(fields | changes))


@pytest.fixture
def make() -> Callable[..., Run]:
    return make_run


@pytest.fixture
def row() -> Callable[..., Row]:
    return make_row


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a run, or any JSON value, to a file of that name."""

    def save_one(name: str, content: Run | object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Run):
            write(path, content)
        else:
            path.write_text(json.dumps(content))
        return path

    return save_one


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`topokv report` with arguments, run in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def report(*words: object) -> tuple[int, str, str]:
        code = cli.main(["report", *map(str, words)])
        out = capsys.readouterr()
        return code, out.out, out.err

    return report
