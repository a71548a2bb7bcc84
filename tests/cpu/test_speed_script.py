"""The script behind docs/performance.md: it runs against the package as it is now."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("speed_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "speed_script", module)
    spec.loader.exec_module(module)
    return module


def test_a_section_measures_and_prints_its_claims(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["speed.py", "--only", "rows", "--threads", "1"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[:2]] == ["| all causal rows, 16 blocks wide"] * 2


def test_the_page_has_a_place_for_the_table(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- speed: begin -->") == text.count("<!-- speed: end -->") == 1
