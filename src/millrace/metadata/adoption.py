"""What to do with logs found on disk: which topics to take into the store, and which logs fit none. No I/O.

Nothing in here ever asks for a deletion: a store that is lost, old or damaged must not cost data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.core.clock import IdSource
from millrace.core.ids import NO_EPOCH, NO_TOPIC_ID, Epoch, NodeId, TopicId
from millrace.metadata.commands import AdoptTopic, Command, RaiseLeaderEpochs, SkipProducerIds
from millrace.metadata.errors import InvalidTopicName
from millrace.metadata.image import Image, TopicState
from millrace.metadata.topic_names import check_topic_name

KAFKA_METADATA_TOPIC: Final = "__cluster_metadata"
"""The log of a KRaft quorum, which lies beside the topics in a data directory of Kafka."""


class FoundLog(NamedTuple):
    """A log on the disk that the metadata may not know."""

    topic: str
    partition: int
    topic_id: TopicId | None
    """From partition.metadata, or None where there is no such file."""
    latest_epoch: Epoch = NO_EPOCH


@dataclass(slots=True)
class Adoption:
    """What to do with the logs that a broker found at its start."""

    commands: list[Command] = field(default_factory=list)
    strays: list[FoundLog] = field(default_factory=list)


def belongs_to(image: Image) -> Callable[[str, TopicId], bool | None]:
    """A function that says whether a topic with this name and id exists; None if the image knows neither."""

    def belongs(topic: str, topic_id: TopicId) -> bool | None:
        known = image.topics.get(topic)
        if known is not None:
            return known.topic_id == topic_id
        return False if topic_id in image.deleted_topics else None

    return belongs


def plan_adoption(
    image: Image, found: Sequence[FoundLog], *, node_id: NodeId, next_producer_id: int, ids: IdSource
) -> Adoption:
    """Decide about every log that a broker found at its start."""
    plan = Adoption()
    by_topic: dict[str, list[FoundLog]] = {}
    for log in sorted(found, key=lambda log: (log.topic, log.partition)):
        if _is_topic(log.topic) and log.topic_id not in image.deleted_topics:
            by_topic.setdefault(log.topic, []).append(log)
    taken: dict[TopicId, None] = {}
    for name, logs in by_topic.items():
        topic = image.topics.get(name)
        if topic is not None:
            _compare(plan, topic, logs, node_id)
            continue
        own = _choose_id(logs) or ids.topic_id()
        if own in image.topics_by_id or own in taken:
            # Somebody copied a directory under another name: the id belongs to the other topic.
            plan.strays += logs
            continue
        taken[own] = None
        _adopt(plan, name, own, logs, node_id)
    if next_producer_id > image.next_producer_id:
        # A fresh store would give out producer ids that the logs have sequences for.
        plan.commands.append(SkipProducerIds(next_producer_id))
    return plan


def _is_topic(name: str) -> bool:
    """Whether the directory can be a topic's at all: whatever else lies there is not ours to touch."""
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return name != KAFKA_METADATA_TOPIC


def _choose_id(logs: Sequence[FoundLog]) -> TopicId | None:
    """The id that most of the logs have, or None if none has one."""
    votes: dict[TopicId, int] = {}
    for log in logs:
        if log.topic_id is not None and log.topic_id != NO_TOPIC_ID:
            votes[log.topic_id] = votes.get(log.topic_id, 0) + 1
    return max(votes, key=lambda candidate: (votes[candidate], candidate)) if votes else None


def _adopt(plan: Adoption, name: str, topic_id: TopicId, logs: Sequence[FoundLog], node_id: NodeId) -> None:
    epochs: dict[int, Epoch] = {}
    for log in logs:
        if _is_of(log, topic_id):
            epochs[log.partition] = log.latest_epoch
        else:
            plan.strays.append(log)
    plan.commands.append(AdoptTopic(name=name, topic_id=topic_id, node_id=node_id, leader_epochs=epochs))


def _compare(plan: Adoption, topic: TopicState, logs: Sequence[FoundLog], node_id: NodeId) -> None:
    raised: dict[int, Epoch] = {}
    for log in logs:
        if not _is_of(log, topic.topic_id) or log.partition >= len(topic.partitions):
            plan.strays.append(log)
            continue
        state = topic.partitions[log.partition]
        if node_id not in state.replicas:
            # The replica moved to another broker while this one was down.
            plan.strays.append(log)
            continue
        # With other replicas the election sees to epochs; for a sole replica, the log is the only witness.
        if state.replicas == (node_id,) and log.latest_epoch > state.leader_epoch:
            raised[log.partition] = log.latest_epoch
    if raised:
        plan.commands.append(RaiseLeaderEpochs(topic.topic_id, raised))


def _is_of(log: FoundLog, topic_id: TopicId) -> bool:
    # A log without an id (Kafka before 2.8, or a lost file) belongs to the topic of its name.
    return log.topic_id in (None, NO_TOPIC_ID, topic_id)
