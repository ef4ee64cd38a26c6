"""The source's rules without brokers: ranges cut, limits shared, filters kept, offsets written down."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.client.fetch_frames import decode_response
from millrace.core.ids import TopicId, TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.source.offsets import Mark, from_json, to_json
from millrace.pipeline.source.planning import Range, share, split_ranges
from millrace.pipeline.source.pushdown import Bounds, push
from millrace.wire.error_codes import ErrorCode

ID = TopicId(bytes(range(16)))
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def ranges(*sizes: int) -> list[Range]:
    return [
        Range(topic_id=ID, partition=TopicPartition("t", number), start=100, end=100 + size)
        for number, size in enumerate(sizes)
    ]


def cut(sizes: list[int], least: int, most: int = 0) -> list[tuple[int, int, int]]:
    tasks = split_ranges(ranges(*sizes), least, most)
    return [(task.partition.partition, task.start, task.end) for task in tasks]


def test_ranges_are_tasks_of_their_own() -> None:
    assert cut([10, 0, 5], 0) == [(0, 100, 110), (2, 100, 105)]
    assert cut([10, 5], 2) == [(0, 100, 110), (1, 100, 105)]


def test_large_ranges_are_cut_and_nothing_is_lost_or_doubled() -> None:
    assert cut([100], 3) == [(0, 100, 133), (0, 133, 166), (0, 166, 200)]
    tasks = cut([90, 10, 1], 10)
    assert len(tasks) >= 10
    covered = [offset for number, start, end in tasks for offset in range(start, end) if number == 0]
    assert covered == list(range(100, 190))
    assert cut([2], 10) == [(0, 100, 101), (0, 101, 102)]


def test_no_task_is_larger_than_asked() -> None:
    assert cut([25], 0, most=10) == [(0, 100, 108), (0, 108, 116), (0, 116, 125)]


def test_a_limit_is_shared_in_proportion_and_none_starves() -> None:
    even = {P0: 1.0, P1: 1.0}
    assert share(100, {P0: 10, P1: 20}, even) == {P0: 10, P1: 20}
    assert share(10, {P0: 100, P1: 300}, even) == {P0: 2, P1: 7}
    assert share(1, {P0: 1_000_000, P1: 1}, even) == {P0: 1, P1: 1}
    assert share(1_000, {P0: 10, P1: 10}, {P0: 100.0, P1: 900.0}) == {P0: 1, P1: 1}


def test_offsets_are_kept_as_one_text() -> None:
    marks = {P1: Mark(ID, 7, 3), P0: Mark(ID, 5, -1)}
    text = json.dumps(to_json(marks))
    assert from_json(json.loads(text)) == marks
    assert json.dumps(to_json(dict(reversed(marks.items())))) == text
    assert json.loads(text) == {
        "orders": {
            "id": "AAECAwQFBgcICQoLDA0ODw",
            "partitions": {"0": {"offset": 5, "epoch": -1}, "1": {"offset": 7, "epoch": 3}},
        }
    }


@pytest.mark.parametrize("kept", [{"orders": {"0": 5}}, {"orders": 5}, {"a": {"id": "x", "partitions": {}}}])
def test_an_offset_of_another_source_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match="did not write"):
        from_json(kept)


def pushed(*conditions: Filter) -> tuple[Bounds, list[Filter]]:
    bounds, left = Bounds(), []
    for condition in conditions:
        more = push(bounds, condition)
        if more is None:
            left.append(condition)
        else:
            bounds = more
    return bounds, left


def test_filters_become_bounds() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    noon_us = int(noon.timestamp()) * 1_000_000
    bounds, left = pushed(
        IsNotNull(("offset",)),
        GreaterThan(("offset",), 10),
        LessThanOrEqual(("offset",), 20),
        GreaterThanOrEqual(("timestamp",), noon),
        LessThan(("timestamp",), noon),
        In(("partition",), (1, 2, 3)),
        LessThan(("partition",), 3),
        EqualTo(("topic",), "orders"),
    )
    assert not left
    assert (bounds.offset_from, bounds.offset_to) == (11, 21)
    assert (bounds.timestamp_from_us, bounds.timestamp_to_us) == (noon_us, noon_us - 1)
    assert bounds.allows(TopicPartition("orders", 2))
    assert not bounds.allows(TopicPartition("orders", 3))
    assert not bounds.allows(TopicPartition("orders", 0))
    assert not bounds.allows(TopicPartition("other", 2))


def test_the_narrower_bound_wins() -> None:
    bounds, _ = pushed(
        GreaterThanOrEqual(("offset",), 5), GreaterThanOrEqual(("offset",), 3), EqualTo(("partition",), 1)
    )
    assert bounds.offset_from == 5
    assert bounds.allows(TopicPartition("t", 1))
    assert not bounds.allows(TopicPartition("t", 0))


def test_what_is_not_understood_is_left_to_spark() -> None:
    conditions = (
        EqualTo(("value",), b"x"),
        Not(EqualTo(("offset",), 3)),
        GreaterThan(("offset",), 3.5),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - that is the point
        IsNotNull(("key",)),
        EqualTo(("topic",), None),
    )
    bounds, left = pushed(*conditions)
    assert left == list(conditions)
    assert bounds == Bounds()


def test_an_answer_of_a_broker_that_makes_no_sense_is_a_failed_connection() -> None:
    for body in (b"", bytes(9), b"\0" * 10 + b"\x05", b"\0" * 10 + b"\x02" + bytes(16) + b"\x02" + bytes(29)):
        with pytest.raises(ConnectionFailed):
            decode_response(memoryview(body), "orders-0")


def test_errors_carry_whether_another_try_helps() -> None:
    assert BrokerRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-0").retriable
    assert not BrokerRefused(ErrorCode.OFFSET_OUT_OF_RANGE, "orders-0").retriable
    assert "unknown error code 9999" in str(BrokerRefused(9999, "orders-0"))
