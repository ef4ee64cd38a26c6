"""Share groups with confluent-kafka's ShareConsumer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.harness.process import BrokerProcess
from tests.harness.topics import admin_client

DEADLINE_S = 30.0


def set_group(broker: BrokerProcess, group: str, **settings: str) -> None:
    """Set settings of a group; `__` stands for a dot."""
    entries = [
        ConfigEntry(name.replace("__", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = admin_client(broker.bootstrap)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


def send(broker: BrokerProcess, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=partition)
        producer.flush(DEADLINE_S)


class Worker:
    """A share consumer that says of each record what is to become of it."""

    def __init__(self, broker: BrokerProcess, group: str, *topics: str, **settings: Any) -> None:
        self.consumer = cast("Any", confluent_kafka).ShareConsumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.subscribe(list(topics))

    def take(self, count: int, timeout_s: float = DEADLINE_S) -> list[Any]:
        """So many records, none of them acknowledged."""
        found: list[Any] = []

        def is_enough(batch: list[Any]) -> bool:
            found.extend(batch)
            return len(found) >= count

        self.until(is_enough, timeout_s)
        return found

    def until(self, done: Callable[[list[Any]], bool], timeout_s: float = DEADLINE_S) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            batch = self.consumer.poll(0.2)
            for message in batch:
                assert message.error() is None, message.error()
            if done(batch):
                return
        raise AssertionError(f"not done within {timeout_s} s")

    def say(self, kind: str, *messages: Any) -> None:
        """Acknowledge, and have it confirmed."""
        ack_type = getattr(cast("Any", confluent_kafka).AcknowledgeType, kind)
        for message in messages:
            self.consumer.acknowledge(message, ack_type)
        for partition, error in self.consumer.commit_sync(DEADLINE_S).items():
            assert error is None, (partition, error)

    def close(self) -> None:
        self.consumer.close()


def seen(messages: list[Any]) -> list[tuple[str, int]]:
    """Values and how often they were delivered."""
    return sorted((message.value().decode(), message.delivery_count()) for message in messages)
