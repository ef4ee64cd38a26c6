"""What archive and replay ask brokers for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import pytest

from millrace.client.broker_client import (
    EARLIEST,
    READ_COMMITTED,
    BrokerClient,
    ListedOffset,
    PartitionInfo,
    TopicInfo,
)
from millrace.client.errors import InvalidOption
from millrace.core.ids import TopicId, TopicPartition, format_topic_id
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import topics
from millrace.pipeline.lake.topics import BrokerOptions, commit, committed, decided_ends, topic_bounds

ID = TopicId(bytes(16))


class Brokers:
    """A topic of two partitions; an open transaction keeps the stable end of partition 1 back for a while."""

    timeout_ms = 1000

    def __init__(self, open_for: int = 0) -> None:
        self.open_for = open_for
        self.now = 0.0
        self.offsets: dict[TopicPartition, int] = {}

    def metadata(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        partitions = {0: PartitionInfo(1, 0), 1: PartitionInfo(1, 0)}
        return {name: TopicInfo(name, ID, False, partitions) for name in names if name == "orders"}

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]:
        stable = 25
        if isolation == READ_COMMITTED and EARLIEST not in asked.values() and self.open_for:
            self.open_for -= 1
            stable = 21
        return {
            each: ListedOffset(
                each.partition + 3 if moment == EARLIEST else (10 if each.partition == 0 else stable), -1, 0
            )
            for each, moment in asked.items()
        }

    def committed(self, _group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.offsets[each] for each in partitions if each in self.offsets}

    def commit(self, _group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets |= offsets

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def client(brokers: Brokers) -> BrokerClient:
    return cast("BrokerClient", brokers)


def test_bounds_end_where_all_is_decided() -> None:
    found = topic_bounds(client(Brokers(open_for=1)), "orders")
    assert (found.topic_id, found.start, found.end) == (format_topic_id(ID), {0: 3, 1: 4}, {0: 10, 1: 21})


def test_a_topic_that_does_not_exist_is_said() -> None:
    with pytest.raises(PipelineError, match="there is no topic nothing"):
        topic_bounds(client(Brokers()), "nothing")


@pytest.mark.parametrize("open_for, end", [(0, 25), (3, 25), (1000, 21)])
def test_ends_wait_for_open_transactions_but_not_for_ever(
    open_for: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(open_for)
    monkeypatch.setattr(topics, "time", brokers)
    assert decided_ends(client(brokers), "orders") == {0: 10, 1: end}
    assert brokers.now <= 1.1
    assert (brokers.now > 0) is (open_for > 0)


def test_marks_of_progress_are_read_back() -> None:
    brokers = Brokers()
    commit(client(brokers), "g", "orders", {1: 5})
    assert committed(client(brokers), "g", "orders", [0, 1]) == {1: 5}


def test_options_of_brokers_are_those_of_the_data_source() -> None:
    options = BrokerOptions(bootstrap="b:1", properties={"sasl.username": "u"})
    assert options.source_options() == {"bootstrap.servers": "b:1", "sasl.username": "u"}
    with pytest.raises(InvalidOption, match="sasl options are given"):
        options.client()
    with BrokerOptions(bootstrap="b:1", properties={}, timeout_ms=5).client() as found:
        assert found.timeout_ms == 5
