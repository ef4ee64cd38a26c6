"""The stored state of one share group. Only `apply` changes it.

Partitions have no owner here, so a member takes the step to its target at once.
"""

from __future__ import annotations

from typing import Final

from millrace.coordinator.decision import Decision, Record, Timer
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.groups.assigned_group import AssignedGroup, tombstones
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.group import NO_PARTITIONS
from millrace.groups.errors import GroupNotFound
from millrace.groups.share.member import ShareMember
from millrace.groups.share.state_topics import StateTopics
from millrace.wire.messages import share_group_records as stored

SHARE: Final = "share"
NO_STATE: Final = StateTopics({}, {}, {})
_MEMBER_KEYS: Final = (
    stored.ShareGroupCurrentMemberAssignmentKey,
    stored.ShareGroupTargetAssignmentMemberKey,
    stored.ShareGroupMemberMetadataKey,
)
"""The metadata goes last, so no other record of a member is left alone."""
_GROUP_KEYS: Final = (
    stored.ShareGroupTargetAssignmentMetadataKey,
    stored.ShareGroupStatePartitionMetadataKey,
    stored.ShareGroupMetadataKey,
)


class ShareGroup(AssignedGroup[ShareMember, Partitions]):
    """One group. Records change it through `apply`; its soft state changes while it is served."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.state = NO_STATE
        """Which partitions have stored state."""
        # Soft state, lost with the coordinator.
        self.is_settled = False
        """Whether no partition waits for its state or for being assigned, at that revision."""
        self.idle: dict[str, Decision[object]] = {}
        """Ready answers to heartbeats that change nothing."""

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
            case (
                stored.ShareGroupTargetAssignmentMetadataKey(),
                (stored.ShareGroupTargetAssignmentMetadataValue() | None),
            ):
                self.apply_target_epoch(value)
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

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        return ()

    def tombstones(self) -> tuple[Record, ...]:
        return (*self.tombstones_of_members(_MEMBER_KEYS), *tombstones(_GROUP_KEYS, group_id=self.group_id))


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """The records that remove a member."""
    return tombstones(_MEMBER_KEYS, group_id=group_id, member_id=member_id)
