"""Small clusters in memory for the tests of the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.core.ids import NodeId, TopicId
from millrace.metadata.commands import Command, CreateTopic, Policy, RegisterBroker
from millrace.metadata.controller import as_batch, decide
from millrace.metadata.fold import fold
from millrace.metadata.image import EMPTY, BrokerState, Image


class CountedIds:
    """Topic ids 1, 2, 3, ..., or from another number on."""

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def topic_id(self) -> TopicId:
        self._last += 1
        return topic_id(self._last)


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16))


def broker(
    node_id: int,
    rack: str | None = None,
    *,
    incarnation: str = "first",
    directory_ids: Sequence[str] = (),
) -> BrokerState:
    return BrokerState(
        node_id=NodeId(node_id),
        incarnation=incarnation,
        rack=rack,
        endpoints=(),
        directory_ids=tuple(directory_ids),
    )


def apply(image: Image, *commands: Command, policy: Policy | None = None) -> Image:
    """The image after the commands, as if each had been committed."""
    for command in commands:
        change = decide(image, command, policy or Policy())
        image = fold(image, as_batch(image, change))
    return image


def cluster(*racks: str | None) -> Image:
    """Brokers 1, 2, ... in these racks, no topics."""
    return apply(EMPTY, *(RegisterBroker(broker(at, rack), None) for at, rack in enumerate(racks, 1)))


def new_topic(
    name: str,
    number: int,
    *,
    partitions: int = -1,
    replicas: int = -1,
    configs: Mapping[str, str] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=topic_id(number),
        partition_count=partitions,
        replication_factor=replicas,
        assignments=assignments,
        configs=configs or {},
    )
