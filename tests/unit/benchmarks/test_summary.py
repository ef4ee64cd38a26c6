"""The statistics behind every published figure."""

from __future__ import annotations

import pytest

from benchmarks.summary import Better, Comparison, Target, Verdict, median_or_none, percentile


@pytest.mark.parametrize(
    "percent, expected", [(50, 500.0), (99, 990.0), (99.9, 999.0), (100, 1000.0), (0.05, 1.0)]
)
def test_a_percentile_is_the_value_at_its_nearest_rank(percent: float, expected: float) -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    assert percentile(values, percent) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([3.5], 99.9) == 3.5


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percentile_outside_its_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], percent)


def test_no_values_have_no_percentile_and_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert median_or_none([]) is None


def test_the_median_ignores_one_outlier() -> None:
    assert median_or_none([100.0, 1.0, 2.0]) == 2.0


def test_the_ratio_is_millrace_over_kafka() -> None:
    assert Comparison(millrace=130.0, kafka=100.0).ratio == pytest.approx(1.3)


@pytest.mark.parametrize("millrace, kafka", [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_there_is_no_ratio_without_both_values(millrace: float | None, kafka: float | None) -> None:
    comparison = Comparison(millrace, kafka)
    assert comparison.ratio is None
    assert comparison.verdict(Target(1.0), Better.HIGHER) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "better, limit, expected",
    [
        (Better.HIGHER, 1.3, Verdict.PASS),
        (Better.HIGHER, 1.31, Verdict.FAIL),
        (Better.LOWER, 1.3, Verdict.PASS),
        (Better.LOWER, 1.29, Verdict.FAIL),
    ],
)
def test_a_target_on_the_ratio_counts_its_limit_as_met(
    better: Better, limit: float, expected: Verdict
) -> None:
    assert Comparison(millrace=1.3, kafka=1.0).verdict(Target(limit), better) is expected


def test_an_absolute_target_needs_no_kafka() -> None:
    target = Target(100, of_ratio=False)
    assert Comparison(millrace=80.0, kafka=None).verdict(target, Better.LOWER) is Verdict.PASS
    assert target.describe(Better.LOWER, "MB") == "≤ 100 MB"
    assert Target(1.3).describe(Better.HIGHER, "rec/s") == "≥ 1.3x"


def test_a_metric_without_a_target_has_no_verdict() -> None:
    assert Comparison(millrace=1.0, kafka=1.0).verdict(None, Better.HIGHER) is Verdict.NONE
