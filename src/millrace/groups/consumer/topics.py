"""The cluster's topics as consumer groups see them: ids, shapes, and a number that tells when they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from millrace.core.ids import NodeId, TopicId
from millrace.groups.assignors import TopicShape
from millrace.metadata.image import BrokerState, Image, TopicState


class ConsumerTopics:
    """The topics of the image. It keeps what it works out for a topic until the topic's state changes."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image
        self._shapes: dict[str, tuple[TopicState, TopicShape, bytes]] = {}
        self._brokers: Mapping[NodeId, BrokerState] = {}

    @property
    def revision(self) -> int:
        """A number that stays the same while no topic changes."""
        return self._image().topology_revision

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._image().topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> TopicId | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    def partitions_of(self, name: str) -> int | None:
        """How many partitions a topic has; None if it does not exist."""
        topic = self._image().topics.get(name)
        return None if topic is None else len(topic.partitions)

    def ids_of(self, names: Iterable[str]) -> frozenset[TopicId]:
        """The ids of those topics that exist."""
        topics = self._image().topics
        found = (topics.get(name) for name in names)
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def shapes_of(self, names: Iterable[str]) -> dict[TopicId, TopicShape]:
        shapes = {}
        for name in sorted(names):
            known = self._known(name)
            if known is not None:
                shapes[known[0].topic_id] = known[1]
        return shapes

    def hash_of(self, names: Iterable[str]) -> int:
        """A hash of names, ids, partitions and racks of topics, which is the same in every process."""
        digest = blake2b(digest_size=8)
        is_empty = True
        for name in sorted(names):
            known = self._known(name)
            if known is not None:
                digest.update(known[2])
                is_empty = False
        return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)

    def _known(self, name: str) -> tuple[TopicState, TopicShape, bytes] | None:
        image = self._image()
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            self._shapes.clear()
        topic = image.topics.get(name)
        if topic is None:
            self._shapes.pop(name, None)
            return None
        known = self._shapes.get(name)
        if known is None or known[0] is not topic:
            shape = TopicShape(len(topic.partitions), _racks(topic, image.brokers))
            known = self._shapes[name] = (topic, shape, _digest(topic, shape))
        return known


def _racks(topic: TopicState, brokers: Mapping[NodeId, BrokerState]) -> tuple[frozenset[str], ...]:
    racks = {node: broker.rack for node, broker in brokers.items() if broker.rack is not None}
    if not racks:
        return ()
    return tuple(
        frozenset(racks[replica] for replica in partition.replicas if replica in racks)
        for partition in topic.partitions
    )


def _digest(topic: TopicState, shape: TopicShape) -> bytes:
    digest = blake2b(digest_size=8)
    digest.update(topic.name.encode() + b"\0" + topic.topic_id)
    digest.update(shape.partition_count.to_bytes(4, "big"))
    for racks in shape.racks:
        digest.update("\0".join(sorted(racks)).encode() + b"\1")
    return digest.digest()
