"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where logs begin and end."""

from __future__ import annotations

import pytest

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.unit.broker.handlers.broker import NOW_MS, Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NOTHING = (ErrorCode.NONE, -1, -1, -1)


def times(count: int) -> list[int]:
    return [NOW_MS + 1000 * (number + 1) for number in range(count)]


@pytest.fixture
def filled(broker: Broker) -> Broker:
    """Five records, one batch each; partition 1 is empty."""
    broker.create_topic("orders", 2)
    for timestamp in times(5):
        broker.append("orders", timestamp)
    return broker


def ask(
    broker: Broker,
    timestamp: int,
    version: int = 11,
    *,
    topic: str = "orders",
    partition: int = 0,
    epoch: int = -1,
    isolation: int = 0,
) -> tuple[int, int, int, int]:
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        timeout_ms=5000,
    )
    (found,) = broker.ask(request, version).topics
    (result,) = found.partitions
    assert isinstance(result, ListOffsetsPartitionResponse)
    return result.error_code, result.timestamp, result.offset, result.leader_epoch


@pytest.mark.parametrize("version", range(1, 12))
def test_both_ends_are_found_in_every_version(filled: Broker, version: int) -> None:
    epoch = 0 if version >= 4 else -1
    for isolation in (0, 1):
        assert ask(filled, LATEST, version, isolation=isolation) == (0, -1, 5, epoch)
    assert ask(filled, EARLIEST, version) == (0, -1, 0, epoch)


def test_the_ends_of_an_empty_log_are_the_same_place(filled: Broker) -> None:
    for timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL):
        assert ask(filled, timestamp, partition=1) == (0, -1, 0, 0)
    for timestamp in (MAX_TIMESTAMP, 0):
        assert ask(filled, timestamp, partition=1) == NOTHING


def test_a_timestamp_finds_the_first_record_that_is_not_older(filled: Broker) -> None:
    stamps = times(5)
    assert ask(filled, 0) == (0, stamps[0], 0, 0)
    assert ask(filled, stamps[2] - 500) == (0, stamps[2], 2, 0)
    assert ask(filled, stamps[2]) == (0, stamps[2], 2, 0)
    assert ask(filled, stamps[4] + 1) == NOTHING


def test_the_youngest_record_is_found(filled: Broker) -> None:
    filled.append("orders", NOW_MS)
    assert ask(filled, MAX_TIMESTAMP) == (0, times(5)[4], 4, 0)


@pytest.mark.parametrize(
    "timestamp, first_version",
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING_UPLOAD, 11), (-7, 99)],
)
def test_special_timestamps_are_unknown_to_older_versions(
    filled: Broker, timestamp: int, first_version: int
) -> None:
    for version in range(1, 12):
        code, *_ = ask(filled, timestamp, version)
        assert code == (ErrorCode.NONE if version >= first_version else ErrorCode.UNSUPPORTED_VERSION)


def test_without_tiers_everything_is_local_and_nothing_is_tiered(filled: Broker) -> None:
    assert ask(filled, EARLIEST_LOCAL) == (0, -1, 0, 0)
    assert ask(filled, LATEST_TIERED) == NOTHING
    assert ask(filled, PENDING_UPLOAD) == NOTHING


def test_what_is_not_committed_is_not_there_yet(filled: Broker) -> None:
    partition = filled.services.partitions.find("orders", 0)
    assert partition is not None
    partition.log.high_watermark = 3
    assert ask(filled, LATEST) == (0, -1, 3, 0)
    assert ask(filled, times(5)[3]) == NOTHING


def test_offsets_of_partitions_that_are_not_there(filled: Broker) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(filled, LATEST, partition=77) == (unknown, -1, -1, -1)
    assert ask(filled, LATEST, topic="none") == (unknown, -1, -1, -1)


def test_a_leader_of_another_time_is_noticed(filled: Broker) -> None:
    assert ask(filled, LATEST, epoch=0)[0] == ErrorCode.NONE
    assert ask(filled, LATEST, epoch=5)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    partition = filled.services.partitions.find("orders", 0)
    assert partition is not None
    partition.leader_epoch = 7
    assert ask(filled, LATEST, epoch=5)[0] == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("version", [1, 11])
def test_a_partition_asked_for_twice_is_refused_once(filled: Broker, version: int) -> None:
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (-1, -2)]
    wanted.append(ListOffsetsPartition(partition_index=1, timestamp=-1))
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=wanted)])
    twice, once = broker_partitions(filled, request, version)
    assert (twice.partition_index, twice.error_code) == (0, ErrorCode.INVALID_REQUEST)
    assert (once.partition_index, once.error_code) == (1, ErrorCode.NONE)


def broker_partitions(
    broker: Broker, request: ListOffsetsRequest, version: int
) -> list[ListOffsetsPartitionResponse]:
    (topic,) = broker.ask(request, version).topics
    partitions: list[ListOffsetsPartitionResponse] = topic.partitions
    return partitions


def epoch_end(
    broker: Broker,
    epoch: int,
    *,
    version: int = 4,
    topic: str = "orders",
    partition: int = 0,
    current: int = -1,
) -> tuple[int, int, int]:
    wanted = OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    (found,) = broker.ask(request, version).topics
    (result,) = found.partitions
    assert isinstance(result, EpochEndOffset)
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_present_epoch_ends_where_the_log_ends(filled: Broker, version: int) -> None:
    assert epoch_end(filled, 0, version=version) == (0, 0, 5)
    assert epoch_end(filled, 0, version=version, partition=1) == (0, 0, 0)


def test_epochs_that_nobody_knows_have_no_end(filled: Broker) -> None:
    assert epoch_end(filled, 5) == (0, -1, -1)
    assert epoch_end(filled, -1) == (0, -1, -1)
    assert epoch_end(filled, 0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert epoch_end(filled, 0, partition=77) == unknown
    assert epoch_end(filled, 0, topic="none") == unknown


def delete(
    broker: Broker, offset: int, *, version: int = 2, topic: str = "orders", partition: int = 0
) -> tuple[int, int]:
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=1000
    )
    (found,) = broker.ask(request, version).topics
    (result,) = found.partitions
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset_or_all_of_them(filled: Broker, version: int) -> None:
    assert delete(filled, 2, version=version) == (0, 2)
    assert ask(filled, EARLIEST) == (0, -1, 2, 0)
    # The start never moves back.
    assert delete(filled, 1, version=version) == (0, 2)
    assert delete(filled, -1, version=version) == (0, 5)
    assert ask(filled, EARLIEST) == (0, -1, 5, 0)
    assert ask(filled, 0) == NOTHING


def test_records_that_cannot_be_deleted_stay(filled: Broker) -> None:
    out_of_range = (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(filled, 100) == out_of_range
    assert delete(filled, -2) == out_of_range
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(filled, 1, topic="none") == unknown
    assert delete(filled, 1, partition=44) == unknown
    assert ask(filled, EARLIEST) == (0, -1, 0, 0)


def test_a_compacted_topic_keeps_its_records(broker: Broker) -> None:
    broker.create_topic("table", configs={"cleanup.policy": "compact"})
    assert delete(broker, 0, topic="table") == (ErrorCode.POLICY_VIOLATION, -1)
    broker.create_topic("both", configs={"cleanup.policy": "compact,delete"})
    assert delete(broker, 0, topic="both") == (0, 0)
