"""Places in a partition as people write them."""

from __future__ import annotations

import pytest

from millrace.cli.moments import (
    AtBeginning,
    AtEnd,
    AtOffset,
    AtTime,
    BeforeEnd,
    Moment,
    parse_moment,
    parse_partitions,
    parse_timestamp_ms,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    "text, moment",
    [
        ("beginning", AtBeginning()),
        ("end", AtEnd()),
        ("0", AtOffset(0)),
        ("42", AtOffset(42)),
        ("-10", BeforeEnd(10)),
        ("-1h", AtTime(NOW_MS - 3_600_000)),
        ("-1h30m", AtTime(NOW_MS - 5_400_000)),
        ("-1.5s", AtTime(NOW_MS - 1500)),
        ("-250ms", AtTime(NOW_MS - 250)),
        ("-2w", AtTime(NOW_MS - 14 * 86_400_000)),
        ("1970-01-01T00:00:01", AtTime(1000)),
        ("1970-01-01T01:00:01+01:00", AtTime(1000)),
        ("1970-01-02", AtTime(86_400_000)),
    ],
)
def test_a_moment_is_read(text: str, moment: Moment) -> None:
    assert parse_moment(text, now_ms=NOW_MS) == moment


@pytest.mark.parametrize("text", ["", "foo", "-", "-1y", "1h", "--1", "2026-13-01"])
def test_anything_else_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(ValueError, match="the last N messages"):
        parse_moment(text, now_ms=NOW_MS)


def test_a_time_without_a_zone_is_utc() -> None:
    assert (
        parse_timestamp_ms("1970-01-01T00:00:00.250") == parse_timestamp_ms("1970-01-01T00:00:00.250Z") == 250
    )


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions("0,2,5-7") == [0, 2, 5, 6, 7]
    assert parse_partitions("3,3") == [3]


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2"])
def test_bad_partition_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of partitions"):
        parse_partitions(text)
