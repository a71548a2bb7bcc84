from __future__ import annotations

import argparse
import re
from pathlib import Path

from topokv.cli import report
from topokv.report import format_names
from topokv.report.reference import columns_table

DOCS = Path(__file__).parents[3] / "docs" / "report.md"


def test_the_reference_of_columns_is_the_columns():
    assert columns_table() in DOCS.read_text(encoding="utf-8")


def test_every_option_and_format_is_documented_and_no_other():
    parser = argparse.ArgumentParser(add_help=False)
    report.add_arguments(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    text = DOCS.read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^\| `(--[a-z-]+)", text)) | {"--output"} == known
    assert all(f"`{name}`" in text for name in format_names())
