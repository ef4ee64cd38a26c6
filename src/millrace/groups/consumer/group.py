"""The stored state of one group of the consumer protocol (KIP-848). Only `apply` changes it.

A member takes the step to its target when it has given up what the target does not leave it. A partition has
one owner: `owners` names the member that may consume it, or was told to stop and has not said yet that it
did. Nobody else gets the partition before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.coordinator.decision import Decision, Record, SetTimer, Timer
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.groups.assigned_group import AssignedGroup, tombstones
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.commands import SessionExpired
from millrace.groups.consumer.member import ConsumerMember, EpochsByPartition
from millrace.groups.errors import IllegalGeneration, StaleMemberEpoch, UnknownMember
from millrace.wire.messages import group_records as stored

CONSUMER: Final = "consumer"
NO_PARTITIONS: Final[Partitions] = {}
_MEMBER_KEYS: Final = (
    stored.ConsumerGroupCurrentMemberAssignmentKey,
    stored.ConsumerGroupTargetAssignmentMemberKey,
    stored.ConsumerGroupMemberMetadataKey,
)
"""The metadata goes last, so no other record of a member is left alone."""


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched when it was last looked at."""

    topics: frozenset[str]
    version: int
    """The revision of the metadata with which the pattern was resolved."""
    timestamp_ms: int


class ConsumerGroup(AssignedGroup[ConsumerMember, Partitions]):
    """One group. Records change it through `apply`; its soft state changes while it is served."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        self.owners: dict[tuple[TopicId, int], str] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.has_partition_metadata = False
        """Whether there is a record of topics' shapes, as Kafka wrote before 4.1. It goes with the group."""
        # Soft state, lost with the coordinator.
        self.idle: dict[str, Decision[object]] = {}
        """Ready answers to heartbeats that change nothing."""
        self.rejoining: dict[str, None] = {}
        """Classic members that were told to join again and have a time-out for it."""
        self.last_commit_ms: dict[str, int] = {}

    @override
    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id} {self.state_name} {self.epoch} {list(self.members)}>"

    def copy(self) -> ConsumerGroup:
        """A copy, for rules that must look a step ahead."""
        twin = ConsumerGroup(self.group_id)
        for name in (
            "epoch",
            "metadata_hash",
            "assignment_epoch",
            "assigned_at_ms",
            "has_partition_metadata",
        ):
            setattr(twin, name, getattr(self, name))
        for name in ("members", "static_members", "target", "owners", "patterns"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    # Applying records.

    def apply(self, record: Record) -> None:
        key, value = record
        self.idle.clear()
        match key, value:
            case stored.ConsumerGroupMetadataKey(), stored.ConsumerGroupMetadataValue():
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case stored.ConsumerGroupPartitionMetadataKey(), _:
                self.has_partition_metadata = value is not None
            case stored.ConsumerGroupMemberMetadataKey(member_id=member_id), _:
                self._apply_metadata(member_id, value)
            case (
                stored.ConsumerGroupTargetAssignmentMetadataKey(),
                (stored.ConsumerGroupTargetAssignmentMetadataValue() | None),
            ):
                self.apply_target_epoch(value)
            case stored.ConsumerGroupTargetAssignmentMemberKey(member_id=member_id), _:
                self._apply_target(member_id, value)
            case stored.ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id), _:
                self._apply_assignment(member_id, value)
            case stored.ConsumerGroupRegularExpressionKey(regular_expression=pattern), _:
                self._apply_pattern(pattern, value)
            case _:
                raise AssertionError(record)

    def _apply_metadata(self, member_id: str, value: object) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is None:
                return
            self._disown(member)
            del self.members[member_id]
            for times in (self.rejoining, self.last_heartbeat_ms, self.last_commit_ms):
                times.pop(member_id, None)
            if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
                del self.static_members[member.instance_id]
            return
        assert isinstance(value, stored.ConsumerGroupMemberMetadataValue), value
        member = (member or ConsumerMember(member_id=member_id)).with_metadata(value)
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def _apply_target(self, member_id: str, value: object) -> None:
        if value is None:
            self.target.pop(member_id, None)
            return
        assert isinstance(value, stored.ConsumerGroupTargetAssignmentMemberValue), value
        self.target[member_id] = {
            TopicId(each.topic_id): frozenset(each.partitions) for each in value.topic_partitions
        }

    def _apply_assignment(self, member_id: str, value: object) -> None:
        assert value is None or isinstance(value, stored.ConsumerGroupCurrentMemberAssignmentValue), value
        before = self.members.get(member_id)
        if before is None:
            if value is None:
                return
            # A compacted log may have a member's assignment before its metadata.
            before = ConsumerMember(member_id=member_id)
        after = before.with_assignment(value)
        self._disown(before)
        for topic, partition in _places(after.assigned, after.revoking):
            self.owners[topic, partition] = member_id
        self.members[member_id] = after

    def _disown(self, member: ConsumerMember) -> None:
        for place in _places(member.assigned, member.revoking):
            if self.owners.get(place) == member.member_id:
                del self.owners[place]

    def _apply_pattern(self, pattern: str, value: object) -> None:
        if value is None:
            self.patterns.pop(pattern, None)
            return
        assert isinstance(value, stored.ConsumerGroupRegularExpressionValue), value
        self.patterns[pattern] = ResolvedPattern(frozenset(value.topics), value.version, value.timestamp)

    # What others ask.

    def owner_of(self, topic: TopicId, partition: int) -> str | None:
        return self.owners.get((topic, partition))

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerMember, patterns: Mapping[str, ResolvedPattern]) -> Iterable[str]:
        """The names that a member is subscribed to; a pattern that is not resolved yet matches nothing."""
        if not member.topic_pattern:
            return member.topic_names
        resolved = patterns.get(member.topic_pattern)
        return member.topic_names if resolved is None else {*member.topic_names, *resolved.topics}

    def subscribers_of_pattern(self, pattern: str) -> list[str]:
        return [member.member_id for member in self.members.values() if member.topic_pattern == pattern]

    @property
    def type_name(self) -> str:
        return "consumer"

    @property
    def protocol_type(self) -> str:
        return CONSUMER

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.has_reached(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def check_commit(
        self, *, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        if generation < 0 and not self.members:
            return None
        return self.check_epoch(member_id, generation)

    def check_fetch(self, *, member_id: str | None, member_epoch: int) -> MillraceError | None:
        if member_id is None and member_epoch < 0:
            return None
        return self.check_epoch(member_id or "", member_epoch)

    def check_epoch(self, member_id: str, epoch: int) -> MillraceError | None:
        member = self.members.get(member_id)
        if member is None:
            return UnknownMember(self.group_id, member_id)
        if epoch == member.epoch:
            return None
        if member.classic is not None:
            return IllegalGeneration(self.group_id, epoch, current=member.epoch)
        return StaleMemberEpoch(member_id, epoch, current=member.epoch)

    def check_commit_of(
        self, *, member_id: str, generation: int, topic_id: TopicId, partition: int
    ) -> MillraceError | None:
        """Why a member may not commit to this partition, or None. A member that has not heard of its newest
        epoch may still commit to partitions that it had before."""
        error = self.check_epoch(member_id, generation)
        member = self.members.get(member_id)
        if error is None or member is None or generation > member.epoch:
            return error
        for owned in (member.assigned, member.revoking):
            since = owned.get(topic_id, {}).get(partition)
            if since is not None and generation >= since:
                return None
        return error

    def check_offset_delete(self) -> MillraceError | None:
        return None

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topics_of(member, self.patterns) for member in self.members.values())

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        self.last_commit_ms[member_id] = now_ms
        return ()

    def tombstones(self) -> tuple[Record, ...]:
        records = self.tombstones_of_members(_MEMBER_KEYS)
        records += [pattern_tombstone(self.group_id, pattern) for pattern in sorted(self.patterns)]
        records.append(Record(stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id), None))
        if self.has_partition_metadata:
            records.append(Record(stored.ConsumerGroupPartitionMetadataKey(group_id=self.group_id), None))
        records.append(Record(stored.ConsumerGroupMetadataKey(group_id=self.group_id), None))
        return tuple(records)


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """The records that remove a member."""
    return tombstones(_MEMBER_KEYS, group_id=group_id, member_id=member_id)


def pattern_tombstone(group_id: str, pattern: str) -> Record:
    return Record(
        stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern), None
    )


def session_timer(group_id: str, member_id: str, timeout_ms: int) -> SetTimer:
    """A member's session timer, with the same name as in a classic group, so that one replaces the other."""
    return SetTimer(("session", group_id, member_id), timeout_ms, SessionExpired(group_id, member_id))


def _places(*owned: EpochsByPartition) -> Iterable[tuple[TopicId, int]]:
    for partitions in owned:
        for topic, epochs in partitions.items():
            for partition in epochs:
                yield topic, partition
