"""Which offsets come from the archive and which from the topic: each once, and none from neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import InvalidOption
from millrace.pipeline.lake import backfill, topics
from millrace.pipeline.lake.backfill import Coverage, broker_options, cover, read_with_archive
from millrace.pipeline.lake.errors import RecordsLost, TopicRecreated
from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.table import TableState
from millrace.pipeline.lake.topics import BrokerOptions, TopicBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", None)


class Broker:
    @contextmanager
    def client(self) -> Iterator[None]:
        yield None


def covered(
    monkeypatch: pytest.MonkeyPatch, states: list[TableState], *bounds: TopicBounds
) -> tuple[Coverage, int]:
    """The coverage of a topic whose table and bounds change at each look; and how often bounds were asked."""
    left, asked = list(bounds), [0]

    class Table:
        def __init__(self, *_: object) -> None:
            pass

        def state(self) -> TableState:
            return states.pop(0) if len(states) > 1 else states[0]

    def topic_bounds(_client: object, _topic: str) -> TopicBounds:
        asked[0] += 1
        return left.pop(0) if len(left) > 1 else left[0]

    with monkeypatch.context() as patched:
        patched.setattr(backfill, "ArchiveTable", Table)
        patched.setattr(topics, "topic_bounds", topic_bounds)
        return cover(NO_SPARK, "/lake", "orders", cast("BrokerOptions", Broker())), asked[0]


def state(next_: Mapping[int, int], first: Mapping[int, int] | None = None, version: int = 1) -> TableState:
    begun = dict.fromkeys(next_, 0) if first is None else first
    return TableState(version, Ledger(topic="orders", topic_id="id", first=begun, next=next_))


def bounds(start: Mapping[int, int], end: Mapping[int, int], topic_id: str = "id") -> TopicBounds:
    return TopicBounds(topic_id=topic_id, start=start, end=end)


def test_below_the_border_is_the_archive_and_from_it_on_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = covered(
        monkeypatch,
        [state({0: 10, 1: 5}, first={0: 2, 1: 5}, version=7)],
        bounds({0: 4, 1: 0, 2: 0}, {0: 12, 1: 5, 2: 3}),
    )
    assert found.version == 7
    assert found.archived == {0: (2, 10)}
    # Partition 1 has nothing new; partition 2 came after the last archive.
    assert found.live == {0: (10, 12), 2: (0, 3)}


PARTITIONS = st.dictionaries(st.integers(0, 4), st.tuples(*[st.integers(0, 9)] * 3), min_size=1)


@given(PARTITIONS)
def test_every_record_is_in_one_part_or_the_loss_is_said(shape: dict[int, tuple[int, int, int]]) -> None:
    ends = {number: max(start, end, border) for number, (start, end, border) in shape.items()}
    starts = {number: start for number, (start, _, _) in shape.items()}
    borders = {number: border for number, (_, _, border) in shape.items()}
    patch = pytest.MonkeyPatch()
    if any(borders[number] < starts[number] for number in shape):
        with pytest.raises(RecordsLost):
            covered(patch, [state(borders)], bounds(starts, ends))
        return
    found, _ = covered(patch, [state(borders)], bounds(starts, ends))
    for number, end in ends.items():
        parts = [range(*part[number]) for part in (found.archived, found.live) if number in part]
        assert [offset for part in parts for offset in part] == list(range(end))


def test_what_the_archive_took_between_two_looks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state({0: 3}, version=1), state({0: 8}, version=2)]
    found, asked = covered(monkeypatch, states, bounds({0: 5}, {0: 9}))
    assert (found.live, found.version, asked) == ({0: (8, 9)}, 2, 2)


def test_a_topic_that_was_made_anew_cannot_be_read_with_its_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        covered(monkeypatch, [state({0: 3})], bounds({0: 0}, {0: 9}, topic_id="other"))


@pytest.mark.parametrize("options, words", [
    ({}, "archive is missing"),
    ({"archive": "/lake"}, "subscribe is missing"),
    ({"archive": "/lake", "subscribe": "a"}, "bootstrap.servers is missing"),
    ({"startingOffsets": "latest"}, "knows no option startingOffsets"),
    ({"archive": "/l", "subscribe": "a", "bootstrap.servers": "b:1", "includeHeaders": "1"}, "true or false"),
])  # fmt: skip
def test_options_are_checked_before_anything_is_read(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        read_with_archive(NO_SPARK, options)


def test_options_of_security_go_to_the_brokers_with_or_without_prefix() -> None:
    given_: dict[str, Any] = {
        "kafka.bootstrap.servers": "b:1",
        "sasl.username": "u",
        "kafka.ssl.ca.location": "ca",
        "subscribe": "a",
    }
    assert broker_options(given_) == BrokerOptions(
        bootstrap="b:1", properties={"sasl.username": "u", "kafka.ssl.ca.location": "ca"}
    )
