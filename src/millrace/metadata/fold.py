"""Folds the store's changes into an image. No other place makes images; a start folds everything there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from millrace.core.ids import NodeId, TopicId, parse_topic_id
from millrace.metadata import records
from millrace.metadata.image import (
    EMPTY,
    BrokerState,
    DeletedTopic,
    Image,
    Member,
    OfflineReplicas,
    PartitionState,
    TopicState,
    collision_name,
)
from millrace.metadata.security import records as security_records
from millrace.metadata.security.fold import fold_security
from millrace.metadata.store import ChangeBatch, KeyChange, Snapshot
from millrace.metadata.topic_names import is_internal

T = TypeVar("T")


def image_of(snapshot: Snapshot) -> Image:
    """The image of a whole store."""
    changes = (KeyChange(key, entry.value, entry.mod_revision) for key, entry in snapshot.entries.items())
    image = _fold(EMPTY, snapshot.revision, changes)
    revision = snapshot.revision
    # Whatever was remembered of security is of another time, also if nothing of it is left.
    security = replace(
        image.security, access_revision=revision, quota_revision=revision, credential_revision=revision
    )
    return replace(image, security=security)


def fold(image: Image, batch: ChangeBatch) -> Image:
    """The image after one more revision."""
    return _fold(image, batch.revision, batch.changes)


@dataclass(slots=True)
class _Edits:
    """What a batch changes, sorted by kind."""

    topics: dict[str, KeyChange] = field(default_factory=dict)
    partitions: dict[TopicId, dict[int, PartitionState | None]] = field(default_factory=dict)
    brokers: dict[NodeId, BrokerState | None] = field(default_factory=dict)
    members: dict[NodeId, Member | None] = field(default_factory=dict)
    stopping: dict[NodeId, int | None] = field(default_factory=dict)
    offline: dict[NodeId, OfflineReplicas | None] = field(default_factory=dict)
    filling: dict[NodeId, int | None] = field(default_factory=dict)
    configs: list[KeyChange] = field(default_factory=list)
    deleted: dict[TopicId, DeletedTopic | None] = field(default_factory=dict)
    creations: dict[TopicId, int | None] = field(default_factory=dict)
    security: list[KeyChange] = field(default_factory=list)
    single: list[KeyChange] = field(default_factory=list)


def _fold(image: Image, revision: int, changes: Iterable[KeyChange]) -> Image:
    edits = _sort(changes)
    changed = replace(image, revision=revision)
    if edits.topics or edits.partitions:
        changed = _with_topics(changed, edits)
    if edits.brokers:
        brokers = _edited(changed.brokers, edits.brokers)
        changed = replace(changed, brokers=brokers, topology_revision=revision)
    if edits.members:
        changed = replace(changed, members=_edited(changed.members, edits.members))
    if edits.stopping:
        changed = replace(changed, stopping=_edited(changed.stopping, edits.stopping))
    if edits.offline:
        offline = _edited(changed.offline, edits.offline)
        changed = replace(changed, offline=offline, topology_revision=revision)
    if edits.filling:
        changed = replace(changed, filling=_edited(changed.filling, edits.filling))
    if edits.deleted:
        puts = {topic_id: topic for topic_id, topic in edits.deleted.items() if topic is not None}
        changed = replace(changed, deleted_topics=changed.deleted_topics.updated(puts, edits.deleted))
    if edits.creations:
        begun = {topic_id: revision for topic_id, revision in edits.creations.items() if revision is not None}
        changed = replace(changed, creations=changed.creations.updated(begun, edits.creations))
    if edits.security:
        changed = replace(changed, security=fold_security(changed.security, edits.security, revision))
    for change in edits.configs:
        changed = _with_configs(changed, change)
    for change in edits.single:
        changed = _with_single(changed, change)
    return changed


def _sort(changes: Iterable[KeyChange]) -> _Edits:
    edits = _Edits()
    for change in changes:
        key, value, mod_revision = change
        if key.startswith(records.PARTITIONS):
            topic_id, partition = records.partition_of_key(key)
            state = None if value is None else records.decode_partition(value, mod_revision)
            edits.partitions.setdefault(topic_id, {})[partition] = state
        elif key.startswith(records.TOPICS):
            edits.topics[key.removeprefix(records.TOPICS)] = change
        elif key.startswith(records.BROKERS):
            node_id = NodeId(int(key.removeprefix(records.BROKERS)))
            edits.brokers[node_id] = (
                None if value is None else records.decode_broker(node_id, value, mod_revision)
            )
        elif key.startswith(records.MEMBERS):
            node_id = NodeId(int(key.removeprefix(records.MEMBERS)))
            edits.members[node_id] = (
                None if value is None else records.decode_member(node_id, value, mod_revision)
            )
        elif key.startswith(records.STOPPING):
            node_id = NodeId(int(key.removeprefix(records.STOPPING)))
            edits.stopping[node_id] = None if value is None else mod_revision
        elif key.startswith(records.OFFLINE):
            node_id = NodeId(int(key.removeprefix(records.OFFLINE)))
            edits.offline[node_id] = None if value is None else records.decode_offline(value, mod_revision)
        elif key.startswith(records.FILLING):
            node_id = NodeId(int(key.removeprefix(records.FILLING)))
            edits.filling[node_id] = None if value is None else mod_revision
        elif key.startswith(security_records.PREFIXES):
            edits.security.append(change)
        elif key.startswith((records.BROKER_CONFIGS, records.GROUP_CONFIGS)):
            edits.configs.append(change)
        elif key.startswith(records.DELETED_TOPICS):
            deleted_id = parse_topic_id(key.removeprefix(records.DELETED_TOPICS))
            edits.deleted[deleted_id] = (
                None if value is None else records.decode_deleted_topic(deleted_id, value, mod_revision)
            )
        elif key.startswith(records.CREATIONS):
            created_id = parse_topic_id(key.removeprefix(records.CREATIONS))
            edits.creations[created_id] = None if value is None else mod_revision
        else:
            # A newer version may have put other keys there, which mean nothing to us.
            edits.single.append(change)
    return edits


def _with_topics(image: Image, edits: _Edits) -> Image:
    gone: list[TopicState] = []
    made: dict[str, TopicState] = {}
    unclaimed: dict[TopicId, Mapping[int, PartitionState]] = {}
    for name, change in edits.topics.items():
        before = image.topics.get(name)
        if before is not None:
            gone.append(before)
        if change.value is None:
            if before is not None:
                _assemble(image, edits, before, count=0, unclaimed=unclaimed)
            continue
        topic_id, count, configs = records.decode_topic(change.value)
        if before is not None and before.topic_id != topic_id:
            _assemble(image, edits, before, count=0, unclaimed=unclaimed)
            before = None
        bare = TopicState(
            name=name,
            topic_id=topic_id,
            partitions=() if before is None else before.partitions,
            configs=MappingProxyType(configs) if configs else _NO_CONFIGS,
            internal=is_internal(name),
            mod_revision=change.mod_revision,
        )
        made[name] = _assemble(image, edits, bare, count=count, unclaimed=unclaimed)
    for topic_id in list(edits.partitions):
        # The partitions that are left belong to a topic whose record did not change, or to none.
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            rest = _with_edits(image.unclaimed.get(topic_id, _NO_PARTITIONS), edits.partitions[topic_id])
            unclaimed[topic_id] = rest
        else:
            made[topic.name] = _assemble(
                image, edits, topic, count=len(topic.partitions), unclaimed=unclaimed
            )
    return _replace_topics(image, gone, made, unclaimed)


def _assemble(
    image: Image,
    edits: _Edits,
    topic: TopicState,
    *,
    count: int,
    unclaimed: dict[TopicId, Mapping[int, PartitionState]],
) -> TopicState:
    """The topic with the partitions that it counts; the others are remembered as unclaimed."""
    topic_id = topic.topic_id
    changes = edits.partitions.pop(topic_id, None)
    rest = unclaimed.get(topic_id, image.unclaimed.get(topic_id, _NO_PARTITIONS))
    if changes is None and not rest and count == len(topic.partitions):
        return topic
    if changes is not None and not rest and count == len(topic.partitions):
        replaced = _replaced(topic.partitions, changes)
        if replaced is not None:
            return replace(topic, partitions=replaced)
    known = {**dict(enumerate(topic.partitions)), **rest}
    known = _with_edits(known, changes or {})
    partitions = []
    for partition in range(count):
        if partition not in known:
            break
        partitions.append(known.pop(partition))
    unclaimed[topic_id] = known
    return replace(topic, partitions=tuple(partitions))


def _replaced(
    partitions: tuple[PartitionState, ...], changes: Mapping[int, PartitionState | None]
) -> tuple[PartitionState, ...] | None:
    """The partitions after the usual change of some out of thousands; None if partitions came or went."""
    replaced = list(partitions)
    for partition, state in changes.items():
        if state is None or partition >= len(replaced):
            return None
        replaced[partition] = state
    return tuple(replaced)


def _with_edits(
    known: Mapping[int, PartitionState], changes: Mapping[int, PartitionState | None]
) -> dict[int, PartitionState]:
    merged = dict(known)
    for partition, state in changes.items():
        if state is None:
            merged.pop(partition, None)
        else:
            merged[partition] = state
    return merged


def _replace_topics(
    image: Image,
    gone: list[TopicState],
    made: dict[str, TopicState],
    unclaimed: dict[TopicId, Mapping[int, PartitionState]],
) -> Image:
    gone_names = [topic.name for topic in gone]
    by_id = {topic.topic_id: topic for topic in made.values()}
    names = {collision_name(name): name for name in made}
    gone_collisions = [
        collision_name(name) for name in gone_names if image.topic_names.get(collision_name(name)) == name
    ]
    still_unclaimed = {topic_id: rest for topic_id, rest in unclaimed.items() if rest}
    if unclaimed:
        image = replace(image, unclaimed=image.unclaimed.updated(still_unclaimed, unclaimed))
    return replace(
        image,
        topology_revision=image.revision,
        topics=image.topics.updated(made, gone_names),
        topics_by_id=image.topics_by_id.updated(by_id, [topic.topic_id for topic in gone]),
        topic_names=image.topic_names.updated(names, gone_collisions),
    )


def _edited(known: Mapping[NodeId, T], edits: Mapping[NodeId, T | None]) -> Mapping[NodeId, T]:
    merged = {**known, **edits}
    return MappingProxyType(
        {node_id: value for node_id in sorted(merged) if (value := merged[node_id]) is not None}
    )


def _with_configs(image: Image, change: KeyChange) -> Image:
    revisions = dict(image.config_revisions)
    if change.value is None:
        revisions.pop(change.key, None)
    else:
        revisions[change.key] = change.mod_revision
    configs = {} if change.value is None else records.decode_configs(change.value)
    image = replace(image, config_revisions=MappingProxyType(revisions))
    if change.key == records.DEFAULT_BROKER_CONFIG_KEY:
        return replace(image, default_broker_config=MappingProxyType(configs))
    if change.key.startswith(records.GROUP_CONFIGS):
        group_id = change.key.removeprefix(records.GROUP_CONFIGS)
        groups = {**image.group_configs, group_id: MappingProxyType(configs)}
        return replace(
            image, group_configs=MappingProxyType({name: found for name, found in groups.items() if found})
        )
    node_id = NodeId(int(change.key.removeprefix(records.BROKER_CONFIGS)))
    merged = {**image.broker_configs, node_id: MappingProxyType(configs)}
    return replace(
        image, broker_configs=MappingProxyType({node: found for node, found in merged.items() if found})
    )


def _with_single(image: Image, change: KeyChange) -> Image:
    value = change.value
    if change.key == records.CLUSTER_KEY:
        cluster_id = "" if value is None else records.decode_cluster(value)
        return replace(image, cluster_id=cluster_id, topology_revision=image.revision)
    if change.key == records.CONTROLLER_KEY:
        controller = None if value is None else records.decode_controller(value)
        return replace(
            image,
            controller_id=controller,
            controller_revision=0 if value is None else change.mod_revision,
            topology_revision=image.revision,
        )
    if change.key == records.PRODUCER_IDS_KEY:
        next_id = 0 if value is None else records.decode_producer_ids(value)
        revision = 0 if value is None else change.mod_revision
        return replace(image, next_producer_id=next_id, producer_ids_revision=revision)
    return image


_NO_PARTITIONS: Mapping[int, PartitionState] = MappingProxyType({})
_NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
