"""One member of a consumer group, as the stored records tell of it. It never changes, but is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, TypeAlias

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.commands import Protocol
from millrace.wire.messages.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

EpochsByPartition: TypeAlias = Mapping[TopicId, Mapping[int, int]]
"""Partitions, each with the epoch in which the member got it."""
NOTHING_OWNED: Final[EpochsByPartition] = {}
NO_EPOCH: Final = -1


class MemberState(IntEnum):
    """Where a member is on its way to its target. The numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member still has to give partitions up."""
    UNRELEASED_PARTITIONS = 2
    """The member has given up what it must, and waits for partitions that others still have."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What a member that speaks the classic protocol inside a consumer group has told."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """What a member has told, and where it is on its way to its target."""

    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """The names of topics, sorted."""
    topic_pattern: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    epoch: int = 0
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: EpochsByPartition = field(default_factory=lambda: NOTHING_OWNED)
    revoking: EpochsByPartition = field(default_factory=lambda: NOTHING_OWNED)
    """What the member was told to give up and has not given up yet."""

    def has_reached(self, target_epoch: int) -> bool:
        """Whether the member has its whole target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def tells_same_as(self, other: ConsumerMember) -> bool:
        """Whether both have the same metadata record."""
        return _metadata(self) == _metadata(other)

    def with_epoch(
        self,
        epoch: int,
        state: MemberState,
        assigned: EpochsByPartition,
        revoking: EpochsByPartition = NOTHING_OWNED,
    ) -> ConsumerMember:
        return replace(
            self,
            previous_epoch=self.epoch,
            epoch=epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    # Records.

    def metadata_record(self, group_id: str) -> Record:
        return Record(
            ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=list(self.topic_names),
                subscribed_topic_regex=self.topic_pattern,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic_member_metadata=_classic_value(self.classic),
            ),
        )

    def assignment_record(self, group_id: str) -> Record:
        return Record(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=self.state,
                assigned_partitions=_topic_partitions(self.assigned),
                partitions_pending_revocation=_topic_partitions(self.revoking),
            ),
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(sorted(value.subscribed_topic_names)),
            topic_pattern=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicSide(
                classic.session_timeout_ms,
                tuple(Protocol(each.name, each.metadata) for each in classic.supported_protocols),
            ),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> ConsumerMember:
        if value is None:
            return replace(
                self,
                epoch=NO_EPOCH,
                previous_epoch=NO_EPOCH,
                state=MemberState.STABLE,
                assigned=NOTHING_OWNED,
                revoking=NOTHING_OWNED,
            )
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_epochs(value.partitions_pending_revocation, value.member_epoch),
        )


def _metadata(member: ConsumerMember) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack,
        member.client_id,
        member.client_host,
        member.topic_names,
        member.topic_pattern,
        member.rebalance_timeout_ms,
        member.server_assignor,
        member.classic,
    )


def _classic_value(classic: ClassicSide | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=each.name, metadata=each.metadata) for each in classic.protocols
        ],
    )


def _topic_partitions(owned: EpochsByPartition) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[partition] for partition in sorted(epochs)],
        )
        for topic, epochs in sorted(owned.items())
    ]


def _epochs(stored: list[TopicPartitions], member_epoch: int) -> EpochsByPartition:
    """The partitions of a record with their epochs. Records from before Kafka 4.3 have none: then the
    member's own epoch is the safe answer."""
    return {
        TopicId(each.topic_id): (
            dict.fromkeys(each.partitions, member_epoch)
            if each.assignment_epochs is None
            else dict(zip(each.partitions, each.assignment_epochs, strict=False))
        )
        for each in stored
    }


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN
