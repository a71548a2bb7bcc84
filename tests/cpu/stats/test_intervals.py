"""Intervals and verdicts, against values worked out by hand or taken from tables."""

import math
import random

import pytest

from topokv.stats import (
    half_width,
    median,
    median_interval,
    over_processes,
    paired_ratios,
    process_ratios,
    quantile,
    ratio,
    relative_iqr,
    relative_spread,
    verdict,
)
from topokv.stats.intervals import t_quantile


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    # From the printed table of Student's t, two-sided.
    [
        (0.95, 1, 12.706),
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.99, 4, 4.604),
        (0.999, 8, 5.041),
        (0.95, 1000, 1.962),
    ],
)
def test_t_quantiles_are_those_of_the_table(confidence, degrees, expected):
    assert t_quantile(confidence, degrees) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("confidence", "degrees", "message"),
    [
        (1.0, 4, r"^confidence \(1\.0\) must lie between 0 and 1$"),
        (0.9, 0, r"^degrees \(0\) must be above 0$"),
    ],
)
def test_t_quantile_names_the_argument_that_makes_no_sense(confidence, degrees, message):
    with pytest.raises(ValueError, match=message):
        t_quantile(confidence, degrees)


def test_quantiles_interpolate_between_neighbours():
    assert quantile([4, 1, 2, 3], 0.5) == 2.5
    assert quantile([10.0, 20.0], 0.9) == pytest.approx(19)
    assert quantile([7.0], 0.99) == 7


def test_nothing_has_no_median_and_no_quantile():
    for find in (median, lambda values: quantile(values, 0.5)):
        with pytest.raises(ValueError, match=r"^values must hold at least one number, got none$"):
            find([])
    with pytest.raises(ValueError, match=r"^share \(1\.5\) must lie in 0\.\.1$"):
        quantile([1.0], 1.5)


@pytest.mark.parametrize("unusable", [0.0, -1.0, math.nan, math.inf])
def test_an_unusable_time_divides_nothing(unusable):
    assert paired_ratios([4.0, 6.0], [unusable, 3.0]) == [2.0]
    assert paired_ratios([unusable, 6.0], [2.0, 3.0]) == [2.0]
    assert ratio(1.0, unusable) is None
    assert ratio(unusable, 1.0) is None
    assert ratio(None, 1.0) is None


def test_each_process_gives_one_ratio_and_an_unusable_process_none():
    dense = [[4.0, 9.0, 4.0], [6.0], [1.0]]
    assert process_ratios(dense, [[2.0, 3.0, 2.0], [2.0], [0.0]]) == [2.0, 3.0]


def test_spreads_are_shares_of_the_least_and_of_the_median():
    assert relative_spread([2.0, 2.2, 2.1]) == pytest.approx(0.1)
    assert relative_iqr([1.0, 2.0, 3.0]) == pytest.approx(0.5)


def test_a_median_interval_needs_six_values_and_holds_the_median():
    assert median_interval([1.0] * 5).low is None
    assert half_width(median_interval([1.0] * 5)) == math.inf
    found = median_interval([float(value) for value in range(1, 26)])
    assert (found.low, found.center, found.high) == (8, 13, 18)
    assert half_width(found) == pytest.approx(5 / 13)


def test_one_process_claims_no_interval():
    assert over_processes([2.0]).low is over_processes([2.0]).high is None


def test_the_interval_of_processes_is_students_on_logarithms():
    found = over_processes([1.0, math.e, math.e**2])
    reach = 4.30265 / math.sqrt(3)
    assert found.center == pytest.approx(math.e)
    assert found.low == pytest.approx(math.exp(1 - reach), rel=1e-4)
    assert found.high == pytest.approx(math.exp(1 + reach), rel=1e-4)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    chance = random.Random(0)
    hits = 0
    for _ in range(300):
        found = over_processes([math.exp(chance.gauss(0.7, 0.05)) for _ in range(5)])
        hits += found.low <= math.exp(0.7) <= found.high
    assert 0.91 <= hits / 300 <= 0.98


BASE = [4.00, 4.02, 3.98, 4.01, 3.99]


def scaled(by):
    return [value * by for value in reversed(BASE)]


@pytest.mark.parametrize(
    ("by", "name"),
    [(1.1, "FAST"), (1 / 1.1, "SLOW"), (1.0, "SAME"), (1.01, "SAME"), (1 / 1.04, "SLOW")],
)
def test_a_verdict_needs_an_effect_beyond_the_band(by, name):
    assert verdict(BASE, scaled(by)).name == name


def test_a_planted_delay_of_ten_percent_is_slow_among_sixty_rows_of_one_percent_noise():
    noisy = [value * noise for value, noise in zip(BASE, (0.99, 1.01, 1, 1.01, 0.99), strict=True)]
    assert verdict(noisy, [value / 1.1 for value in noisy], num_rows=60).name == "SLOW"


def test_a_delay_of_three_percent_is_never_fast():
    assert verdict(BASE, scaled(1 / 1.03)).name != "FAST"


def test_noise_alone_is_neither_fast_nor_slow():
    chance = random.Random(1)
    names = set()
    for _ in range(200):
        runs = [[math.exp(chance.gauss(1, 0.04)) for _ in range(5)] for _ in range(2)]
        names.add(verdict(*runs, num_rows=60).name)
    assert names <= {"SAME", "????"}


def test_equal_runs_without_any_noise_are_the_same():
    assert verdict([2.0] * 5, [2.0] * 5).name == "SAME"


def test_one_process_gives_no_verdict():
    assert verdict([2.0], [4.0]).name == "????"
    assert verdict([2.0], [4.0]).ratio == 2.0
