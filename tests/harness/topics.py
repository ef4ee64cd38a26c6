"""Topics for tests, made through librdkafka's admin client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

_COUNTER: Final = itertools.count(1)


def admin_client(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 15_000})


def unique_name(stem: str) -> str:
    return f"{stem}-{next(_COUNTER)}"


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> str:
    """Create the topic, wait until all its leaders are known; its name."""
    admin = admin_client(bootstrap)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([topic])[name].result(20)
    wait_for_topic(admin, name, partitions)
    return name


def wait_for_topic(admin: Any, name: str, partitions: int, deadline_s: float = 60.0) -> None:
    """Wait until every partition has a leader that serves it: Kafka announces leaders before they do."""
    deadline = time.monotonic() + deadline_s
    wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
    while True:
        try:
            for outcome in admin.list_offsets(wanted, request_timeout=5).values():
                outcome.result(10)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
