from __future__ import annotations

import pytest

from topokv.report.columns import COLUMNS, FIRST_FIVE
from topokv.report.numbers import shown, significant
from topokv.results import KEY_FIELDS


def test_the_first_five_columns_keep_their_names_and_places():
    assert tuple(column.name for column in COLUMNS[:5]) == FIRST_FIVE


def test_every_column_has_one_name_and_a_meaning():
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.meaning and not column.meaning.endswith(".") for column in COLUMNS)


def test_everything_that_identifies_a_row_has_a_column():
    assert set(KEY_FIELDS) <= {column.name for column in COLUMNS if column.role == "asked"}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ms", ""),
        (0.0, "ms", "0"),
        (0.01234, "ms", "0.0123"),
        (4.983, "ms", "4.98"),
        (1234.5, "ms", "1234"),
        (0.00001234, "ms", "1.23e-05"),
        (24.26, "x", "24.3x"),
        (0.946, "%", "94.6 %"),
        (-0.0001, "%", "0.0 %"),
        (-0.034, "%", "-3.4 %"),
        (16384, "count", "16384"),
        (5.0, "count", "5"),
        (3 * 2**20, "bytes", "3.00 MiB"),
        ("drift", "", "drift"),
    ],
)
def test_numbers_are_shown_in_their_unit(value, unit, text):
    assert shown(value, unit) == text


def test_significant_digits_survive_rounding_up():
    assert [significant(value) for value in (9.994, 9.996, 999.6)] == ["9.99", "10.0", "1000"]
