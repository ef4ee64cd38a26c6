"""Selections as conditions that Spark can skip days and files by."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from millrace.pipeline.lake.ranges import parse_selection
from millrace.pipeline.lake.selection import selected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Rows:
    def __init__(self) -> None:
        self.conditions: list[str] = []

    def where(self, condition: str) -> Rows:
        self.conditions.append(condition)
        return self


def conditions(start: str, end: str) -> list[str]:
    rows = Rows()
    assert selected(cast("DataFrame", rows), parse_selection(start, end)) is cast("DataFrame", rows)
    return rows.conditions


def test_without_bounds_all_rows_are_meant() -> None:
    assert conditions("beginning", "end") == []


def test_times_name_their_days_too() -> None:
    assert conditions("2026-01-31T08:00", "2026-02-01") == [
        "date >= DATE'2026-01-31' AND unix_millis(timestamp) >= 1769846400000",
        # The day of the end itself has earlier records only if the end is not midnight; it costs one folder.
        "date <= DATE'2026-02-01' AND unix_millis(timestamp) < 1769904000000",
    ]


@pytest.mark.parametrize("start, end, expected", [
    ("5", "end", ["offset >= 5"]),
    ("beginning", "9", ["offset < 9"]),
    ("0:4,2:7", "end", ["(partition = 0 AND offset >= 4) OR (partition = 2 AND offset >= 7)"]),
    ("beginning", "1:3", ["(partition = 1 AND offset < 3)"]),
])  # fmt: skip
def test_the_start_is_part_of_it_and_the_end_is_not(start: str, end: str, expected: list[str]) -> None:
    assert conditions(start, end) == expected
