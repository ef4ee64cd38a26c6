"""One member of a share group, as the stored records tell of it. It never changes, but is replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.member import NO_EPOCH, MemberState
from millrace.wire.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    TopicPartitions,
)

NOTHING_ASSIGNED: Final[Partitions] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """What a member has told, and what it may fetch."""

    member_id: str
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """The names of topics, sorted."""

    epoch: int = 0
    previous_epoch: int = NO_EPOCH
    assigned: Partitions = field(default_factory=lambda: NOTHING_ASSIGNED)

    def metadata_record(self, group_id: str) -> Record:
        return Record(
            ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            ShareGroupMemberMetadataValue(
                rack_id=self.rack,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=list(self.topic_names),
            ),
        )

    def assignment_record(self, group_id: str) -> Record:
        return Record(
            ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id),
            ShareGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=MemberState.STABLE,
                assigned_partitions=[
                    TopicPartitions(topic_id=topic, partitions=sorted(partitions))
                    for topic, partitions in sorted(self.assigned.items())
                ],
            ),
        )

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        return replace(
            self,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(sorted(value.subscribed_topic_names)),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue | None) -> ShareMember:
        if value is None:
            return replace(self, epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=NOTHING_ASSIGNED)
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned={
                TopicId(each.topic_id): frozenset(each.partitions) for each in value.assigned_partitions
            },
        )
