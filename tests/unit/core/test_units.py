"""Sizes, rates and durations: what is read, what is refused, what is shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.units import (
    bytes_text,
    count_text,
    parse_bytes,
    parse_bytes_per_s,
    parse_count,
    parse_seconds,
    seconds_text,
)


@pytest.mark.parametrize(
    "parse, text, expected",
    [
        (parse_count, "250000", 250_000),
        (parse_count, "1_000_000", 1_000_000),
        (parse_count, " 2.5k ", 2_500),
        (parse_count, "3 million", 3_000_000),
        (parse_bytes, "512", 512),
        (parse_bytes, "1KB", 1_000),
        (parse_bytes, "1kb", 1_000),
        (parse_bytes, "10MiB", 10 * 1024**2),
        (parse_bytes, ".5GB", 500_000_000),
        (parse_bytes, "4TB", 4e12),
        (parse_bytes_per_s, "50MB", 50e6),
        (parse_bytes_per_s, "50MB/s", 50e6),
        (parse_bytes_per_s, "50MBps", 50e6),
        # Eight bits are a byte.
        (parse_bytes_per_s, "10Gbit", 1.25e9),
        (parse_bytes_per_s, "10Gbit/s", 1.25e9),
        (parse_seconds, "90", 90),
        (parse_seconds, "250ms", 0.25),
        (parse_seconds, "36h", 129_600),
        (parse_seconds, "7d", 604_800),
        (parse_seconds, "2w", 1_209_600),
        # A lonely m is minutes among durations and a million among counts.
        (parse_seconds, "5m", 300),
        (parse_count, "5m", 5_000_000),
    ],
)
def test_a_unit_multiplies_its_number(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "parse, text, forms",
    [
        (parse_count, "many", "a number such as"),
        (parse_count, "-1", "a number such as"),
        (parse_count, "1e6", "a number such as"),
        (parse_count, "1__0", "a number such as"),
        (parse_bytes, "1 parsec", "a size such as"),
        (parse_bytes, "10Gbit", "a size such as"),
        (parse_bytes, "", "a size such as"),
        (parse_bytes_per_s, "fast", "a rate for each second"),
        (parse_seconds, "1 year", "a duration such as"),
        (parse_seconds, "1h30m", "a duration such as"),
    ],
)
def test_anything_else_is_refused_with_examples(parse: Callable[[str], float], text: str, forms: str) -> None:
    with pytest.raises(ValueError, match=forms) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        # It would be shown as 1000 B.
        (999.6, "1 kB"),
        (1_810_000_000_000_000, "1.81 PB"),
        (5e21, "5,000 EB"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(size: float, text: str) -> None:
    assert bytes_text(size) == text


@given(st.floats(1, 1e17))
def test_a_size_that_is_shown_can_be_read_again(size: float) -> None:
    assert parse_bytes(bytes_text(size)) == pytest.approx(size, rel=0.006)


@given(st.floats(1, 9e11))
def test_a_count_that_is_shown_can_be_read_again(count: float) -> None:
    assert parse_count(count_text(count)) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.25, "250 ms"),
        (1, "1 s"),
        (59, "59 s"),
        (90, "1.5 minutes"),
        (7200, "2 hours"),
        (86_400 * 400, "400 days"),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_that_it_fills(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_count_has_no_unit_below_a_thousand() -> None:
    assert count_text(12) == "12"
    assert count_text(2_500_000) == "2.5 M"
