"""Partitions that are created and deleted count; once a client is in debt, those who know it are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.handlers.topics.mutations import EXCEEDED
from millrace.security.quotas.entities import entity
from millrace.security.quotas.precedence import QuotaTable
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.network.client import CLIENT_ID, Client
from tests.unit.broker.network.virtual_time import VirtualTime

RATE = 1.0
"""A burst of eleven partitions."""


class Asking:
    def __init__(self, broker: Broker) -> None:
        broker.services.throttling.replace(
            QuotaTable([(entity(client_id=CLIENT_ID.decode()), {"controller_mutation_rate": RATE})])
        )
        self._broker = broker
        self.time = VirtualTime()
        self.client: Client | None = None

    def ask(self, key: ApiKey, version: int, request: object) -> Any:
        async def work() -> Any:
            if self.client is None:
                self.client = Client(self._broker.services, loop=self.time, ticks=self.time.time)
            return await self.client.ask(key, version, request)

        return self._broker.run(work())

    def wait(self, seconds: float) -> None:
        async def work() -> None:
            self.time.advance(seconds)

        self._broker.run(work())

    def create(self, *topics: tuple[str, int], version: int = 7, validate_only: bool = False) -> Any:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                for name, count in topics
            ],
            timeout_ms=1_000,
            validate_only=validate_only,
        )
        answer = self.ask(ApiKey.CREATE_TOPICS, version, request)
        return {topic.name: topic.error_code for topic in answer.topics}, answer.throttle_time_ms


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    broker = Broker(tmp_path / "data", {"auto.create.topics.enable": "true"})
    broker.start()
    yield Asking(broker)
    broker.stop()


def test_topics_are_refused_once_there_is_a_debt(asking: Asking) -> None:
    codes, throttle_ms = asking.create(("a", 8), ("b", 8), ("c", 1))
    assert sorted(codes.values()) == [0, 0, EXCEEDED], "the burst is eleven, and what begins within it passes"
    assert throttle_ms == 5_000
    assert asking.client is not None
    assert not asking.client.transport.is_reading
    asking.wait(5)
    assert asking.create(("d", 1)) == ({"d": 0}, 0)


def test_older_versions_are_granted_and_wait(asking: Asking) -> None:
    codes, throttle_ms = asking.create(("a", 8), ("b", 8), ("c", 1), version=5)
    assert set(codes.values()) == {0}
    assert throttle_ms == 6_000


def test_what_was_not_changed_costs_nothing(asking: Asking) -> None:
    assert asking.create(("a", 11)) == ({"a": 0}, 0)
    asking.wait(1)
    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    for _ in range(3):
        assert asking.create(("a", 11)) == ({"a": exists}, 0)
    assert asking.create(("b", 100), validate_only=True) == ({"b": 0}, 0)
    assert asking.create(("b", 1)) == ({"b": 0}, 0)


def test_deleting_and_adding_partitions_count_too(asking: Asking) -> None:
    asking.create(("a", 5))
    grown = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=12, assignments=None)], timeout_ms=1_000
    )
    answer = asking.ask(ApiKey.CREATE_PARTITIONS, 3, grown)
    assert [(result.error_code, answer.throttle_time_ms) for result in answer.results] == [(0, 0)]
    wanted = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1_000)
    answer = asking.ask(ApiKey.DELETE_TOPICS, 6, wanted)
    assert [result.error_code for result in answer.responses] == [EXCEEDED]
    assert answer.throttle_time_ms == 1_000
    asking.wait(2)
    answer = asking.ask(ApiKey.DELETE_TOPICS, 6, wanted)
    assert [result.error_code for result in answer.responses] == [0]
    asking.wait(1)
    answer = asking.ask(ApiKey.CREATE_PARTITIONS, 3, grown)
    assert [result.error_code for result in answer.results] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_topics_that_come_into_being_by_being_asked_for_count(asking: Asking) -> None:
    names = [MetadataRequestTopic(name=f"auto{number}") for number in range(14)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=True)
    answer = asking.ask(ApiKey.METADATA, 12, request)
    assert {topic.error_code for topic in answer.topics} == {0}
    assert answer.throttle_time_ms == 3_000
