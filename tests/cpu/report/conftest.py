from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report_runs import make_row, make_run

from topokv import cli
from topokv.results import Row, Run
from topokv.results.codec import write


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
