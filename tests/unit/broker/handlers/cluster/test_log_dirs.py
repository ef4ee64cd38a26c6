"""DescribeLogDirs, AlterReplicaLogDirs and DescribeProducers: what is on this broker's disks, where, and who
wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.core.ids import TopicPartition
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from millrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
)
from tests.unit.broker.handlers.broker import NOW_MS, Broker


def sizes(result: DescribeLogDirsResult) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_the_directory_tells_its_logs_and_its_disk(broker: Broker, version: int) -> None:
    broker.create_topic("orders", 2)
    broker.append("orders", NOW_MS, NOW_MS)
    response = broker.ask(DescribeLogDirsRequest(topics=None), version)
    assert response.error_code == ErrorCode.NONE
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (ErrorCode.NONE, broker.log_directory.path)
    found = sizes(result)
    assert sorted(found) == [("orders", 0), ("orders", 1)]
    assert found["orders", 0] > 61
    assert found["orders", 1] == 0
    assert all(partition.offset_lag == 0 for topic in result.topics for partition in topic.partitions)
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes
    else:
        assert (result.usable_bytes, result.total_bytes) == (-1, -1)


def test_only_logs_that_are_asked_for_and_here_are_told(broker: Broker) -> None:
    broker.create_topic("orders", 2)
    wanted = [
        DescribableLogDirTopic(topic="orders", partitions=[1, 9]),
        DescribableLogDirTopic(topic="none", partitions=[0]),
    ]
    (result,) = broker.ask(DescribeLogDirsRequest(topics=wanted), 4).results
    assert list(sizes(result)) == [("orders", 1)]
    (result,) = broker.ask(DescribeLogDirsRequest(topics=[]), 4).results
    assert result.topics == []


def test_a_failed_disk_is_told_as_such(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.log_directory.offline_reason = "a test"
    (result,) = broker.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    broker.log_directory.offline_reason = None


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "a", others=[tmp_path / "b"])
    broker.start()
    yield broker
    broker.stop()


def alter(broker: Broker, path: str, topic: str, *indexes: int, version: int = 2) -> list[int]:
    wanted = AlterReplicaLogDir(
        path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=list(indexes))]
    )
    (found,) = broker.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), version).results
    assert found.topic_name == topic
    return [result.error_code for result in found.partitions]


def test_new_logs_go_where_there_are_fewest(two_disks: Broker) -> None:
    two_disks.create_topic("orders", 5)
    first, second = two_disks.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert sorted(sizes(first)) == [("orders", 0), ("orders", 2), ("orders", 4)]
    assert sorted(sizes(second)) == [("orders", 1), ("orders", 3)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_move_is_shown_and_taken_back(two_disks: Broker, version: int) -> None:
    two_disks.create_topic("orders", 1)
    two_disks.append("orders", NOW_MS, NOW_MS)
    first, second = (directory.path for directory in two_disks.log_directories.all)
    assert alter(two_disks, f"{second}/", "orders", 0, version=version) == [ErrorCode.NONE]
    home, target = two_disks.ask(DescribeLogDirsRequest(topics=None), 4).results
    ((future,),) = (topic.partitions for topic in target.topics)
    assert (future.is_future_key, future.partition_size, future.offset_lag) == (True, 0, 2)
    ((held,),) = (topic.partitions for topic in home.topics)
    assert not held.is_future_key
    # Asked for once more it goes on; asked to stay it stays.
    assert alter(two_disks, second, "orders", 0) == [ErrorCode.NONE]
    assert len(two_disks.log_directories.mover.moves) == 1
    assert alter(two_disks, first, "orders", 0) == [ErrorCode.NONE]
    assert two_disks.ask(DescribeLogDirsRequest(topics=None), 4).results[1].topics == []
    assert two_disks.log_directories.mover.moves == {}


def test_what_cannot_be_moved_is_refused_in_kafkas_words(two_disks: Broker) -> None:
    two_disks.create_topic("orders", 1)
    second = two_disks.log_directories.all[1]
    assert alter(two_disks, "/nowhere", "orders", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert alter(two_disks, second.path, "orders", 7) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert alter(two_disks, second.path, "unknown", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    long_name = "t" * 249
    two_disks.create_topic(long_name, 1)
    home = two_disks.log_directories.home_of(TopicPartition(long_name, 0))
    (other,) = (directory for directory in two_disks.log_directories.all if directory is not home)
    assert alter(two_disks, other.path, long_name, 0) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert two_disks.log_directories.mover.moves == {}
    second.fence("a test")
    assert alter(two_disks, second.path, "orders", 0) == [ErrorCode.KAFKA_STORAGE_ERROR]
    first, failed = two_disks.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert (first.error_code, failed.error_code) == (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)


def producers(broker: Broker, topic: str, *indexes: int) -> list[PartitionResponse]:
    wanted = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=list(indexes))])
    (found,) = broker.ask(wanted, 0).topics
    partitions: list[PartitionResponse] = found.partitions
    return partitions


def test_producers_are_told_with_what_they_wrote_last(broker: Broker) -> None:
    broker.create_topic("orders", 2)
    broker.append("orders", NOW_MS, NOW_MS + 7, producer_id=42)
    written, empty, absent = producers(broker, "orders", 0, 1, 55)
    (producer,) = written.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (42, 0, 1)
    assert (producer.last_timestamp, producer.coordinator_epoch) == (NOW_MS + 7, -1)
    assert producer.current_txn_start_offset == -1
    assert (empty.error_code, empty.active_producers) == (ErrorCode.NONE, [])
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "topic, code",
    [("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_producers_of_topics_that_are_not_there(broker: Broker, topic: str, code: ErrorCode) -> None:
    (result,) = producers(broker, topic, 0)
    assert (result.error_code, bool(result.error_message)) == (code, True)
