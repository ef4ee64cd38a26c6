"""What archive and replay ask brokers for: where partitions begin and end, new topics, marks of progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.client import topic_creation
from millrace.client.broker_client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BrokerClient,
    TopicInfo,
)
from millrace.client.security import read_security
from millrace.client.topic_creation import NewTopics
from millrace.core.ids import TopicPartition, format_topic_id
from millrace.pipeline.errors import PipelineError

_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How to reach the brokers, as options of the data source name it."""

    bootstrap: str
    properties: Mapping[str, str]
    timeout_ms: int = 30_000

    def source_options(self) -> dict[str, str]:
        """The same for `spark.read.format("millrace")`."""
        return {"bootstrap.servers": self.bootstrap, **self.properties}

    def client(self) -> BrokerClient:
        return BrokerClient(
            self.bootstrap,
            client_id="millrace-lake",
            security=read_security(self.properties),
            timeout_ms=self.timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """A topic as the brokers have it: per partition the first offset kept and the end of what is decided."""

    topic_id: str
    start: Mapping[int, int]
    end: Mapping[int, int]


def topic_bounds(client: BrokerClient, topic: str) -> TopicBounds:
    """Raises PipelineError for a topic that does not exist."""
    info = _topic(client, topic)
    partitions = [TopicPartition(topic, number) for number in info.partitions]
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST), READ_COMMITTED)
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), READ_COMMITTED)
    return TopicBounds(
        topic_id=format_topic_id(info.topic_id),
        start={each.partition: starts[each].offset for each in partitions},
        end={each.partition: ends[each].offset for each in partitions},
    )


def decided_ends(client: BrokerClient, topic: str) -> dict[int, int]:
    """The ends once all transactions that are open now are decided, or as they are when that takes too long.

    A commit is acknowledged before its markers are in every partition.
    """
    partitions = [TopicPartition(topic, number) for number in _topic(client, topic).partitions]
    latest = dict.fromkeys(partitions, LATEST)
    ends = client.list_offsets(latest, READ_UNCOMMITTED)
    deadline = time.monotonic() + client.timeout_ms / 1000
    while True:
        decided = client.list_offsets(latest, READ_COMMITTED)
        if time.monotonic() > deadline or all(
            decided[each].offset >= ends[each].offset for each in partitions
        ):
            return {each.partition: decided[each].offset for each in partitions}
        time.sleep(_PAUSE_S)


def find_topic(client: BrokerClient, topic: str) -> TopicInfo | None:
    return client.metadata([topic]).get(topic)


def create_topic(client: BrokerClient, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
    topic_creation.create_topic(client, topic, NewTopics(partitions=partitions, configs=configs))


def committed(client: BrokerClient, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    found = client.committed(group, [TopicPartition(topic, number) for number in partitions])
    return {each.partition: offset for each, offset in found.items()}


def commit(client: BrokerClient, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    client.commit(group, {TopicPartition(topic, number): offset for number, offset in offsets.items()})


def _topic(client: BrokerClient, topic: str) -> TopicInfo:
    info = find_topic(client, topic)
    if info is None:
        raise PipelineError(f"there is no topic {topic}")
    return info
