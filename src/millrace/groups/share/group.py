"""The stored state of one share group. Only `apply` changes it.

As in groups of the consumer protocol there are three epochs: the group's, the assignment's, and each
member's. But partitions have no owner, so a member takes the step to its target at once.
"""

from __future__ import annotations

from typing import Final

from millrace.coordinator.decision import Decision, Record, Timer
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.group import NEVER_CHECKED, NO_PARTITIONS
from millrace.groups.errors import GroupNotFound
from millrace.groups.share.member import ShareMember
from millrace.groups.share.state_topics import StateTopics
from millrace.wire.messages import share_group_records as stored

SHARE: Final = "share"
NO_STATE: Final = StateTopics({}, {}, {})


class ShareGroup:
    """One group. Records change it through `apply`; its soft state changes while it is served."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Partitions] = {}
        self.state = NO_STATE
        """Which partitions have stored state."""
        # Soft state, lost with the coordinator.
        self.checked_revision = NEVER_CHECKED
        """The revision of the metadata that the group's hash was last compared with."""
        self.is_settled = False
        """Whether no partition waits for its state or for being assigned, at that revision."""
        self.idle: dict[str, Decision[object]] = {}
        """Ready answers to heartbeats that change nothing."""
        self.last_heartbeat_ms: dict[str, int] = {}

    @override
    def __repr__(self) -> str:
        return f"<ShareGroup {self.group_id} {self.state_name} {self.epoch} {list(self.members)}>"

    # Applying records.

    def apply(self, record: Record) -> None:
        key, value = record
        self.idle.clear()
        self.is_settled = False
        match key, value:
            case stored.ShareGroupMetadataKey(), stored.ShareGroupMetadataValue():
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case stored.ShareGroupMemberMetadataKey(member_id=member_id), _:
                self._apply_metadata(member_id, value)
            case stored.ShareGroupTargetAssignmentMetadataKey(), _:
                self._apply_target_epoch(value)
            case stored.ShareGroupTargetAssignmentMemberKey(member_id=member_id), _:
                self._apply_target(member_id, value)
            case stored.ShareGroupCurrentMemberAssignmentKey(member_id=member_id), _:
                self._apply_assignment(member_id, value)
            case stored.ShareGroupStatePartitionMetadataKey(), _:
                self._apply_state(value)
            case _:
                raise AssertionError(record)

    def _apply_metadata(self, member_id: str, value: object) -> None:
        if value is None:
            self.members.pop(member_id, None)
            self.last_heartbeat_ms.pop(member_id, None)
            return
        assert isinstance(value, stored.ShareGroupMemberMetadataValue), value
        member = self.members.get(member_id) or ShareMember(member_id=member_id)
        self.members[member_id] = member.with_metadata(value)

    def _apply_target_epoch(self, value: object) -> None:
        if value is None:
            self.assignment_epoch = self.assigned_at_ms = 0
            return
        assert isinstance(value, stored.ShareGroupTargetAssignmentMetadataValue), value
        self.assignment_epoch = value.assignment_epoch
        self.assigned_at_ms = value.assignment_timestamp

    def _apply_target(self, member_id: str, value: object) -> None:
        if value is None:
            self.target.pop(member_id, None)
            return
        assert isinstance(value, stored.ShareGroupTargetAssignmentMemberValue), value
        self.target[member_id] = {
            TopicId(each.topic_id): frozenset(each.partitions) for each in value.topic_partitions
        }

    def _apply_assignment(self, member_id: str, value: object) -> None:
        assert value is None or isinstance(value, stored.ShareGroupCurrentMemberAssignmentValue), value
        before = self.members.get(member_id)
        if before is None and value is None:
            return
        # A compacted log may have a member's assignment before its metadata.
        self.members[member_id] = (before or ShareMember(member_id=member_id)).with_assignment(value)

    def _apply_state(self, value: object) -> None:
        if value is None:
            self.state = NO_STATE
            return
        assert isinstance(value, stored.ShareGroupStatePartitionMetadataValue), value
        self.state = StateTopics.from_value(value)

    # What others ask.

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, NO_PARTITIONS)

    @property
    def topic_names(self) -> list[str]:
        """What any member is subscribed to."""
        return sorted({name for member in self.members.values() for name in member.topic_names})

    @property
    def type_name(self) -> str:
        return SHARE

    @property
    def protocol_type(self) -> str:
        return SHARE

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def check_commit(
        self, *, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        return self._is_no_consumer_group()

    def check_fetch(self, *, member_id: str | None, member_epoch: int) -> MillraceError | None:
        return self._is_no_consumer_group()

    def check_offset_delete(self) -> MillraceError | None:
        return self._is_no_consumer_group()

    def _is_no_consumer_group(self) -> MillraceError:
        return GroupNotFound(self.group_id, "is not a consumer group")

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in member.topic_names for member in self.members.values())

    def offsets_age_since(self, commit_ms: int) -> int | None:
        return commit_ms

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        return ()

    def tombstones(self) -> tuple[Record, ...]:
        records = []
        for member_id in sorted({*self.members, *self.target}):
            records += member_tombstones(self.group_id, member_id)
        records += [
            Record(key(group_id=self.group_id), None)
            for key in (
                stored.ShareGroupTargetAssignmentMetadataKey,
                stored.ShareGroupStatePartitionMetadataKey,
                stored.ShareGroupMetadataKey,
            )
        ]
        return tuple(records)


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """The records that remove a member. Its metadata goes last, so no other record of it is left alone."""
    return [
        Record(key(group_id=group_id, member_id=member_id), None)
        for key in (
            stored.ShareGroupCurrentMemberAssignmentKey,
            stored.ShareGroupTargetAssignmentMemberKey,
            stored.ShareGroupMemberMetadataKey,
        )
    ]
