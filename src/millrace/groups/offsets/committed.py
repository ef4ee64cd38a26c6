"""The offsets that groups have committed: what is stored, what may be stored, and what is too old. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.coordinator.decision import Record
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH, NO_TOPIC_ID
from millrace.groups.commands import CommitOffsets, CommittedOffset
from millrace.groups.errors import OffsetMetadataTooLarge
from millrace.groups.kinds import Group
from millrace.wire.messages.group_records import OffsetCommitKey

TopicOffsets = dict[int, CommittedOffset]


class Offsets:
    """Offsets by group, topic and partition. Only records change them."""

    __slots__ = ("by_group", "pending")

    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, TopicOffsets]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        """What each producer's open transaction has committed, in the order of the log."""

    def apply_pending(self, producer_id: int, key: OffsetCommitKey, committed: CommittedOffset) -> None:
        """Apply an offset within a transaction."""
        self.pending.setdefault(producer_id, {})[key.group, key.topic, key.partition] = committed

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> list[str]:
        """Let a transaction's offsets count from now on, or forget them; returns the groups with new ones."""
        ended = self.pending.pop(producer_id, {})
        if is_commit:
            for (group, topic, partition), committed in ended.items():
                self.apply(OffsetCommitKey(group=group, topic=topic, partition=partition), committed)
        return list(dict.fromkeys(group for group, _, _ in ended)) if is_commit else []

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return any((group_id, topic, partition) in offsets for offsets in self.pending.values())

    def has_pending(self, group_id: str) -> bool:
        return any(group == group_id for offsets in self.pending.values() for group, _, _ in offsets)

    def apply(self, key: OffsetCommitKey, committed: CommittedOffset | None) -> None:
        """Apply a record: an offset, or that there is none any more."""
        group_id, topic, partition = key.group, key.topic, key.partition
        if self.pending:
            self._forget_pending(group_id, topic, partition)
        topics = self.by_group.get(group_id)
        if committed is None:
            self._remove(topics, key)
            return
        if topics is None:
            topics = self.by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = committed

    def _remove(self, topics: dict[str, TopicOffsets] | None, key: OffsetCommitKey) -> None:
        partitions = None if topics is None else topics.get(key.topic)
        if topics is None or partitions is None or partitions.pop(key.partition, None) is None:
            return
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self.by_group[key.group]

    def _forget_pending(self, group_id: str, topic: str, partition: int) -> None:
        """Forget what open transactions hold for this partition: it is older, and must not come back."""
        for offsets in self.pending.values():
            offsets.pop((group_id, topic, partition), None)

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.by_group.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def tombstones(self, group_id: str) -> list[Record]:
        """The records that remove all offsets of a group."""
        return [_tombstone(group_id, topic, partition) for topic, partition, _ in self.of_group(group_id)]

    def tombstones_of_topics(self, topics: Sequence[str]) -> list[Record]:
        """The records that remove the offsets of deleted topics from all groups."""
        return [
            _tombstone(group_id, topic, partition)
            for group_id, by_topic in self.by_group.items()
            for topic in topics
            for partition in by_topic.get(topic, ())
        ]

    def delete(self, group: Group, partitions: Sequence[tuple[str, int]]) -> list[Record]:
        """The records that remove these offsets of the group, where there are any."""
        return [
            _tombstone(group.group_id, topic, partition)
            for topic, partition in partitions
            if self.find(group.group_id, topic, partition) is not None
        ]

    def expired(self, group: Group, *, now_ms: int, retention_ms: int) -> list[Record]:
        """The records that remove the group's offsets past their retention.

        A topic that the group is subscribed to keeps its offsets, however rarely it is read."""
        return [
            _tombstone(group.group_id, topic, partition)
            for topic, partition, committed in self.of_group(group.group_id)
            if not group.is_subscribed(topic) and _is_expired(group, committed, now_ms, retention_ms)
        ]


def commit(
    command: CommitOffsets, *, now_ms: int, metadata_max: int
) -> tuple[list[Record], list[MillraceError | None]]:
    """The records of a commit that the group lets pass, and for each offset None or why it has none."""
    expire_ms = -1 if command.retention_ms is None else now_ms + command.retention_ms
    records: list[Record] = []
    errors: list[MillraceError | None] = []
    for topic, partition, offset, leader_epoch, metadata, topic_id in command.offsets:
        if len(metadata) > metadata_max:
            errors.append(OffsetMetadataTooLarge(len(metadata), size_max=metadata_max))
            continue
        errors.append(None)
        records.append(
            Record(
                OffsetCommitKey(group=command.group_id, topic=topic, partition=partition),
                CommittedOffset(
                    offset,
                    # The layout with an expiry has no room for epoch and topic id, and a restart must find
                    # the same.
                    leader_epoch if expire_ms < 0 else NO_EPOCH,
                    metadata,
                    now_ms,
                    expire_ms,
                    topic_id if expire_ms < 0 else NO_TOPIC_ID,
                ),
            )
        )
    return records, errors


def _is_expired(group: Group, committed: CommittedOffset, now_ms: int, retention_ms: int) -> bool:
    since_ms = group.offsets_age_since(committed.commit_ms)
    if since_ms is None:
        return False
    if committed.expire_ms >= 0:
        return now_ms >= committed.expire_ms
    return now_ms - since_ms >= retention_ms


def _tombstone(group_id: str, topic: str, partition: int) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
