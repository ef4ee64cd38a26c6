"""What permissions and quotas cost for each request: the table, and when it is too much."""

from __future__ import annotations

from benchmarks.counts import WITHOUT, are_within_limit, lines, table

FOUND = {
    WITHOUT: {"produce": 60_000.0, "commit": 100_000.0},
    "acls": {"produce": 60_600.0, "commit": 99_000.0},
}


def test_every_guard_has_a_column_beside_none() -> None:
    assert table(FOUND) == [
        "| instructions for each | without | acls | ratio |",
        "|---|---:|---:|---:|",
        "| produce | 60,000 | 60,600 | 1.010x |",
        "| commit | 100,000 | 99,000 | 0.990x |",
    ]


def test_three_in_a_hundred_are_allowed() -> None:
    assert are_within_limit(FOUND)
    assert not are_within_limit({**FOUND, "quotas": {"produce": 61_900.0, "commit": 1.0}})


def test_each_kind_of_request_is_counted_once_and_refusals_are_seen() -> None:
    kinds = lines()
    assert len({line.title for line in kinds}) == len(kinds)
    commit = next(line for line in kinds if line.title == "offset commit")
    assert not commit.is_fine(bytes([0xFF]) * 200)
    assert commit.is_fine(bytes(200))
