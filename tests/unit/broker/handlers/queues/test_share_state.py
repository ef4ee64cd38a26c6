"""The APIs of share state as brokers see them; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.queues.state.service import ShareState
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import delete_share_group_state as delete
from millrace.wire.messages import initialize_share_group_state as init
from millrace.wire.messages import read_share_group_state as read
from millrace.wire.messages import read_share_group_state_summary as short
from millrace.wire.messages import write_share_group_state as write
from tests.unit.broker.handlers.broker import RESTRICTED, Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    made.create_topic("orders", 2)
    made.run(made.share_state.topic.ensure())
    yield made
    made.stop()


def topic_id(broker: Broker) -> bytes:
    return broker.metadata.image.topics["orders"].topic_id


def initialize(broker: Broker, partition: int = 0, epoch: int = 1, start_offset: int = 0) -> Any:
    part = init.PartitionData(partition=partition, state_epoch=epoch, start_offset=start_offset)
    data = [init.InitializeStateData(topic_id=topic_id(broker), partitions=[part])]
    return only(broker.ask(init.InitializeShareGroupStateRequest(group_id="g", topics=data), 0))


def written(*batches: tuple[int, int, int, int, int], **values: Any) -> write.PartitionData:
    runs = [
        write.StateBatch(
            first_offset=first,
            last_offset=last,
            delivery_state=state,
            delivery_count=count,
            not_before_ms=not_before_ms,
        )
        for first, last, state, count, not_before_ms in batches
    ]
    return write.PartitionData(**{"state_epoch": 1, "start_offset": -1, **values}, state_batches=runs)


def write_all(broker: Broker, *parts: write.PartitionData, version: int = 1, **values: Any) -> Any:
    data = [write.WriteStateData(topic_id=topic_id(broker), partitions=[part]) for part in parts]
    return broker.ask(write.WriteShareGroupStateRequest(**{"group_id": "g", **values}, topics=data), version)


def read_one(broker: Broker, leader_epoch: int = 0, partition: int = 0) -> Any:
    part = read.PartitionData(partition=partition, leader_epoch=leader_epoch)
    data = [read.ReadStateData(topic_id=topic_id(broker), partitions=[part])]
    return only(broker.ask(read.ReadShareGroupStateRequest(group_id="g", topics=data), 0))


def sum_up(broker: Broker, version: int = 1, partition: int = 0) -> Any:
    part = short.PartitionData(partition=partition, leader_epoch=-1)
    data = [short.ReadStateSummaryData(topic_id=topic_id(broker), partitions=[part])]
    return only(broker.ask(short.ReadShareGroupStateSummaryRequest(group_id="g", topics=data), version))


def delete_one(broker: Broker, partition: int = 0) -> Any:
    part = delete.PartitionData(partition=partition)
    data = [delete.DeleteStateData(topic_id=topic_id(broker), partitions=[part])]
    return only(broker.ask(delete.DeleteShareGroupStateRequest(group_id="g", topics=data), 0))


def only(response: Any) -> Any:
    (topic,) = response.results
    (partition,) = topic.partitions
    return partition


def test_state_goes_through_its_life(broker: Broker) -> None:
    assert initialize(broker, start_offset=5).error_code == 0
    part = written((5, 6, 2, 1, 0), (8, 8, 0, 2, 9_000), start_offset=5, delivery_complete_count=2)
    assert only(write_all(broker, part)).error_code == 0
    found = read_one(broker)
    assert (found.error_code, found.state_epoch, found.start_offset) == (0, 1, 5)
    runs = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count, each.not_before_ms)
        for each in found.state_batches
    ]
    assert runs == [(5, 6, 2, 1, 0), (8, 8, 0, 2, 9_000)]
    summed = sum_up(broker)
    assert (summed.state_epoch, summed.leader_epoch, summed.start_offset) == (1, 0, 5)
    assert summed.delivery_complete_count == 2
    assert sum_up(broker, version=0).start_offset == 5
    assert delete_one(broker).error_code == 0
    assert delete_one(broker).error_code == 0
    assert sum_up(broker).start_offset == -1


def test_a_leader_of_an_older_broker_does_not_count_what_is_done(broker: Broker) -> None:
    initialize(broker)
    write_all(broker, written((0, 3, 2, 1, 0)), version=0)
    assert sum_up(broker).delivery_complete_count == -1


def test_refusals_have_kafkas_codes(broker: Broker) -> None:
    assert read_one(broker).error_code == ErrorCode.INVALID_REQUEST
    assert only(write_all(broker, written())).error_code == ErrorCode.INVALID_REQUEST
    initialize(broker, epoch=3)
    assert initialize(broker, epoch=2).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert only(write_all(broker, written(state_epoch=2))).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert read_one(broker, leader_epoch=4).error_code == 0
    assert read_one(broker, leader_epoch=3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    late = written(state_epoch=3, leader_epoch=3)
    refused = only(write_all(broker, late))
    assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert refused.error_message
    assert initialize(broker, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sum_up(broker, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_one(broker, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for ask in (initialize, sum_up, delete_one):
        assert ask(broker, partition=-1).error_code == ErrorCode.INVALID_REQUEST
    assert read_one(broker, partition=-1).error_code == ErrorCode.INVALID_REQUEST
    assert only(write_all(broker, written(partition=-1))).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("batch", [(5, 4, 2, 1, 0), (-1, 4, 2, 1, 0), (0, 4, 1, 1, 0), (0, 4, 7, 1, 0)])
def test_runs_that_make_no_sense_are_not_stored(
    broker: Broker, batch: tuple[int, int, int, int, int]
) -> None:
    initialize(broker)
    assert only(write_all(broker, written(batch))).error_code == ErrorCode.INVALID_REQUEST
    assert read_one(broker).state_batches == []


def test_each_write_of_a_request_has_its_own_result_in_its_place(broker: Broker) -> None:
    initialize(broker, partition=1)
    response = write_all(
        broker, written(partition=1), written(partition=0), written((0, 0, 2, 1, 0), partition=1)
    )
    results = [(part.partition, part.error_code) for topic in response.results for part in topic.partitions]
    assert results == [(1, 0), (0, ErrorCode.INVALID_REQUEST), (1, 0)]


def test_requests_that_lack_something_are_answered_with_nothing(broker: Broker) -> None:
    initialize(broker)
    assert write_all(broker, written(), group_id="").results == []
    assert write_all(broker).results == []
    empty = read.ReadStateData(topic_id=topic_id(broker))
    assert broker.ask(read.ReadShareGroupStateRequest(group_id="g", topics=[empty]), 0).results == []


def test_before_the_topic_is_there_nobody_is_served(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.start()
    broker.create_topic("orders", 1)
    assert initialize(broker).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.stop()


def test_only_brokers_may_ask(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", settings=RESTRICTED)
    broker.start()
    broker.create_topic("orders", 1)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for ask in (initialize, read_one, sum_up, delete_one):
        found = ask(broker)
        assert (found.error_code, found.error_message) == (refused, refused.message)
    assert only(write_all(broker, written())).error_code == refused
    broker.stop()


def test_a_commit_that_does_not_come_is_not_waited_for_for_ever(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize(broker)
    broker.share_state.settings.write_timeout_ms = 10
    monkeypatch.setattr(ShareState, "write", lambda *_: asyncio.get_running_loop().create_future())
    response = write_all(broker, written(partition=0), written(partition=1))
    codes = [part.error_code for topic in response.results for part in topic.partitions]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2
