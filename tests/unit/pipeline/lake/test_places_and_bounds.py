"""Places of archives and bounds of selections as people write them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from millrace.pipeline.lake.errors import ArchiveError
from millrace.pipeline.lake.location import arrow_url, quoted, root_url, table_path
from millrace.pipeline.lake.ranges import (
    AtOffset,
    AtOffsets,
    AtTime,
    Selection,
    Unbounded,
    day_of,
    parse_selection,
)


@pytest.mark.parametrize(
    "text, url",
    [
        ("/data/lake/", "/data/lake"),
        ("file:///data/my%20lake", "/data/my lake"),
        ("s3://bucket/lake/", "s3a://bucket/lake"),
        ("s3a://bucket/lake", "s3a://bucket/lake"),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake"),
    ],
)
def test_a_root_is_read(text: str, url: str) -> None:
    assert root_url(text) == url


def test_a_relative_folder_is_one_of_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_path("lake", "orders.eu-1") == f"{tmp_path}/lake/orders.eu-1"


@pytest.mark.parametrize("text", ["", "  ", "ftp://host/lake", "https://host/lake"])
def test_a_place_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ArchiveError, match="folder"):
        root_url(text)


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a b", "x" * 250])
def test_no_topic_leads_out_of_the_root(topic: str) -> None:
    with pytest.raises(ArchiveError, match="no name of a topic"):
        table_path("/lake", topic)


def test_paths_are_named_for_sql_and_for_arrow() -> None:
    assert quoted("/a`b") == "delta.`/a``b`"
    assert arrow_url("s3a://bucket/x") == "s3://bucket/x"
    assert arrow_url("gs://bucket/x") == "gs://bucket/x"


@pytest.mark.parametrize(
    "start, end, selection",
    [
        ("beginning", "end", Selection()),
        ("42", "end", Selection(AtOffset(42))),
        ("1970-01-01T00:00:01", "1970-01-01T01:00:02+01:00", Selection(AtTime(1000), AtTime(2000))),
        ("0:5,2:7", "end", Selection(AtOffsets(((0, 5), (2, 7))), Unbounded())),
    ],
)
def test_a_selection_is_read(start: str, end: str, selection: Selection) -> None:
    assert parse_selection(start, end) == selection


@pytest.mark.parametrize(
    "start, end", [("end", "end"), ("soon", "end"), ("beginning", "0:"), ("0:1;1:2", "end")]
)
def test_a_bound_that_is_none_names_what_is_allowed(start: str, end: str) -> None:
    with pytest.raises(ArchiveError, match="beginning, end, a time"):
        parse_selection(start, end)


@pytest.mark.parametrize("start, end", [("7", "7"), ("2026-01-02", "2026-01-01")])
def test_bounds_the_wrong_way_round_are_a_mistake(start: str, end: str) -> None:
    with pytest.raises(ArchiveError, match="nothing lies between"):
        parse_selection(start, end)


@pytest.mark.parametrize(
    "timestamp_ms, day",
    [
        (0, date(1970, 1, 1)),
        (86_399_999, date(1970, 1, 1)),
        (86_400_000, date(1970, 1, 2)),
        (-1, date(1970, 1, 1)),
        (2**62, date(9999, 12, 31)),
    ],
)
def test_every_timestamp_has_a_day(timestamp_ms: int, day: date) -> None:
    assert day_of(timestamp_ms) == day
