"""Data directories of brokers: what is asked, and what is made of the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.cli import data_directories
from millrace.cli.clients import RequestFailed
from millrace.cli.data_directories import Directory, HeldReplica, directories_of, move, read
from millrace.cli.options import BrokerAddress
from millrace.core.ids import TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.fakes import ADDRESS, FakeBroker


def held(topic: str, *partitions: tuple[int, int, int, bool]) -> SimpleNamespace:
    return SimpleNamespace(
        name=topic,
        partitions=[
            SimpleNamespace(partition_index=number, partition_size=size, offset_lag=lag, is_future_key=future)
            for number, size, lag, future in partitions
        ],
    )


def directory(path: str, *topics: SimpleNamespace, error_code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        log_dir=path, error_code=error_code, total_bytes=1000, usable_bytes=400, topics=list(topics)
    )


def log_dirs(*results: SimpleNamespace, error_code: int = 0) -> dict[ApiKey, Any]:
    answer = SimpleNamespace(error_code=error_code, results=list(results))
    return {ApiKey.DESCRIBE_LOG_DIRS: lambda _: answer}


def test_a_directory_is_summed_up_with_what_arrives_apart() -> None:
    broker = FakeBroker(log_dirs(directory("/d1", held("a", (0, 10, 0, False), (1, 5, 7, True)))))
    (found,) = directories_of(broker, 3)  # type: ignore[arg-type]
    assert found.replicas == [
        HeldReplica(3, "/d1", "a", 0, 10, 0, False),
        HeldReplica(3, "/d1", "a", 1, 5, 7, True),
    ]
    assert found.summary() == {
        "broker": 3,
        "directory": "/d1",
        "state": "online",
        "replicas": 1,
        "arriving": 1,
        "bytes": 15,
        "free_bytes": 400,
        "total_bytes": 1000,
    }


def test_only_the_topics_that_are_asked_for_are_shown() -> None:
    replies = log_dirs(directory("/d", held("a", (0, 1, 0, False)), held("b", (0, 1, 0, False))))
    (found,) = directories_of(FakeBroker(replies), 1, ["b"])  # type: ignore[arg-type]
    assert [replica.topic for replica in found.replicas] == ["b"]


def test_a_directory_that_failed_is_offline() -> None:
    broker = FakeBroker(log_dirs(directory("/d", error_code=ErrorCode.KAFKA_STORAGE_ERROR)))
    (found,) = directories_of(broker, 1)  # type: ignore[arg-type]
    assert found.summary()["state"] == "offline"


def test_a_broker_that_refuses_is_named() -> None:
    broker = FakeBroker(log_dirs(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(RequestFailed, match=r"^the directories of broker 4: .*CLUSTER_AUTHORIZATION_FAILED"):
        directories_of(broker, 4)  # type: ignore[arg-type]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Two brokers with a directory each; the addresses that were dialled."""
    metadata = SimpleNamespace(
        brokers=[SimpleNamespace(node_id=node, host=f"h{node}", port=9) for node in (2, 1)]
    )
    first = FakeBroker({ApiKey.METADATA: lambda _: metadata})
    dialled: list[tuple[object, ...]] = []

    def dial(host: str, port: int, where: BrokerAddress) -> FakeBroker:
        dialled.append((host, port, where))
        return FakeBroker(log_dirs(directory(f"/of-{host}")))

    monkeypatch.setattr(data_directories, "connected", first.connected)
    monkeypatch.setattr(data_directories, "connect", dial)
    return dialled


def test_every_broker_is_asked_for_its_own_directories(cluster: list[tuple[object, ...]]) -> None:
    found = read(ADDRESS)
    assert [(each.broker, each.path) for each in found] == [(1, "/of-h1"), (2, "/of-h2")]
    assert cluster == [("h1", 9, ADDRESS), ("h2", 9, ADDRESS)]
    assert [each.broker for each in read(ADDRESS, [2])] == [2]


def test_a_broker_that_is_not_there_is_told_before_any_is_asked(cluster: list[tuple[object, ...]]) -> None:
    with pytest.raises(RequestFailed, match=r"brokers \[7\] are not there; running: \[1, 2\]"):
        read(ADDRESS, [1, 7])
    assert cluster == []


def test_wishes_are_grouped_by_directory_and_answered_one_by_one() -> None:
    def reply(request: Any) -> SimpleNamespace:
        asked = [(one.path, topic.name, topic.partitions) for one in request.dirs for topic in one.topics]
        assert asked == [("/x", "a", [0, 2]), ("/x", "b", [1]), ("/y", "a", [1])]
        codes = {("a", 1): int(ErrorCode.LOG_DIR_NOT_FOUND)}
        return SimpleNamespace(
            results=[
                SimpleNamespace(
                    topic_name=topic,
                    partitions=[
                        SimpleNamespace(partition_index=number, error_code=codes.get((topic, number), 0))
                        for number in numbers
                    ],
                )
                for topic, numbers in (("a", (0, 1, 2)), ("b", (1,)))
            ]
        )

    wishes = {
        TopicPartition("a", 0): "/x",
        TopicPartition("a", 2): "/x",
        TopicPartition("b", 1): "/x",
        TopicPartition("a", 1): "/y",
    }
    outcome = move(FakeBroker({ApiKey.ALTER_REPLICA_LOG_DIRS: reply}), wishes)  # type: ignore[arg-type]
    assert outcome.pop(TopicPartition("a", 1)) is ErrorCode.LOG_DIR_NOT_FOUND
    assert set(outcome.values()) == {ErrorCode.NONE}
    assert len(outcome) == 3


def test_a_directory_without_replicas_is_empty() -> None:
    empty = Directory(broker=1, path="/d", error=None, total_bytes=1, free_bytes=1)
    assert (empty.summary()["replicas"], empty.summary()["bytes"]) == (0, 0)
