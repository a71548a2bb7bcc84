"""The script behind docs/performance.md: it runs against the package as it is now."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "speed.py"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("speed_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "speed_script", module)
    spec.loader.exec_module(module)
    return module


def test_a_section_measures_claims_that_a_process_can_hand_on(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["speed.py", "--section", "rows", "--threads", "1"])
    script.main()
    claims = [script.Claim(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [claim.what for claim in claims[:2]] == ["all causal rows, 16 blocks wide"] * 2
    assert all(claim.cold and claim.cold > 0 for claim in claims)


@pytest.mark.parametrize(
    ("rule", "judged", "line"),
    [
        ("at most", "cold", "| a / b | here | at most 2 | 3 x | 1–4 | 2 x | **missed** |"),
        ("at most", "warm", "| a / b | here | at most 2 | 3 x | 1–4 | 2 x | met |"),
        ("at least", "cold", "| a / b | here | at least 2 | 3 x | 1–4 | 2 x | met |"),
        ("", "cold", "| a / b | here |  | 3 x | 1–4 | 2 x |  |"),
    ],
)
def test_a_claim_is_judged_by_the_median_over_processes(script, rule, judged, line):
    claims = [
        script.Claim("a / b", "here", rule, 2.0, cold, warm, judged=judged)
        for cold, warm in ((4.0, 1.0), (1.0, 9.0), (3.0, 2.0))
    ]
    assert script._line(script.Found.of(claims)) == line


def test_the_page_has_a_place_for_the_table(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- speed: begin -->") == text.count("<!-- speed: end -->") == 1
