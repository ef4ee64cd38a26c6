"""What can be asked of groups, and what they answer. Versions of the wire protocol end before this point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from millrace.coordinator.decision import Producer
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.log.state.transactions import EndMarker

NO_MEMBER = ""
NO_GENERATION = -1


class Protocol(NamedTuple):
    """A way of assigning partitions that a member offers, with what the member tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A classic member wants to be part of the next generation."""

    group_id: str
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[Protocol]
    reason: str | None = None
    new_member_id: str
    """The id for a member that has none; the caller draws it, because rules know no chance."""
    requires_known_member_id: bool = True
    """From version 4 on a new member is first told its id, so that lost answers leave no ghosts."""
    supports_skipped_assignment: bool = True


class JoinedMember(NamedTuple):
    """One member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The generation that a member is part of from now on."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str
    member_id: str
    members: Sequence[JoinedMember] = ()
    """All members, for the leader only."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A classic member asks for its assignment; the leader's request brings those of all."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


class Synced(NamedTuple):
    """What a member may consume in this generation, in bytes that only members have to understand."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


class Heartbeat(NamedTuple):
    """A classic member is alive, and wants to know whether it must join again."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class LeavingMember(NamedTuple):
    """A member that leaves or is sent away; the instance id alone is enough for a static one."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class Leave(NamedTuple):
    """Members leave a classic group, or an administrator sends them away."""

    group_id: str
    members: Sequence[LeavingMember]


class Left(NamedTuple):
    """For each member in the order asked: None, or why it could not leave."""

    members: Sequence[tuple[LeavingMember, MillraceError | None]]


class OffsetToCommit(NamedTuple):
    """One offset of a commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Store how far a group has read."""

    group_id: str
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION
    """The generation of a classic group, the member epoch of a consumer group, or -1 for simple consumers."""
    retention_ms: int | None = None
    knows_epochs: bool = True
    """From version 9 on a client can tell a missing group from a wrong generation."""
    offsets: Sequence[OffsetToCommit] = ()


class CommitInTransaction(NamedTuple):
    """Offsets that count when the producer's transaction is committed. The caller knows it to be open."""

    producer: Producer
    commit: CommitOffsets


class EndOffsetTransaction(NamedTuple):
    """The coordinator's marker: the offsets of a producer's transaction count now, or never."""

    marker: EndMarker


class OffsetsCommitted(NamedTuple):
    """For each offset in the order asked: None, or why it was not stored."""

    errors: Sequence[MillraceError | None]


class CommittedOffset(NamedTuple):
    """How far a group has read one partition, as it is stored."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    """When the client itself wanted it forgotten; -1 leaves that to the broker's settings."""
    topic_id: TopicId


UNSTABLE = CommittedOffset(-1, -1, "", -1, -1, NO_TOPIC_ID)
"""Stands in place of an offset that an open transaction is about to replace."""


class FetchOffsets(NamedTuple):
    """Tell how far a group has read."""

    group_id: str
    partitions: Sequence[tuple[str, int]] | None
    """None asks for all that the group has."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False
    """Whether to answer UNSTABLE for offsets that an open transaction is about to replace."""


class OffsetsFetched(NamedTuple):
    """Topic, partition and offset of each in the order asked; None where the group has none."""

    offsets: Sequence[tuple[str, int, CommittedOffset | None]]


class DeleteOffsets(NamedTuple):
    """Forget how far a group has read, where it is not subscribed."""

    group_id: str
    partitions: Sequence[tuple[str, int]]


class OffsetsDeleted(NamedTuple):
    """For each partition in the order asked: None, or why its offset is still there."""

    errors: Sequence[MillraceError | None]


class DeleteGroup(NamedTuple):
    """Forget a group that has no members, with its offsets."""

    group_id: str


class ExpireOffsets(NamedTuple):
    """Forget offsets past their retention and groups that nothing is left of."""


class TopicsDeleted(NamedTuple):
    """These topics are gone: no group needs their offsets."""

    topics: Sequence[str]
    topic_ids: Sequence[TopicId] = ()


class MemberTimedOut(NamedTuple):
    """A classic member has not been heard of for its session's time-out."""

    group_id: str
    member_id: str


class JoinTimedOut(NamedTuple):
    """Members had their rebalance time-out to join again."""

    group_id: str


class InitialDelayPassed(NamedTuple):
    """A new group waits a moment for more members before its first generation."""

    group_id: str
    delay_ms: int
    remaining_ms: int


class SyncTimedOut(NamedTuple):
    """Members of a generation had their rebalance time-out to ask for their assignment."""

    group_id: str
    generation: int


DONE: object = object()
"""The response of commands that have nothing to tell."""

ClassicCommand: TypeAlias = (
    Join | Sync | Heartbeat | Leave | MemberTimedOut | JoinTimedOut | InitialDelayPassed | SyncTimedOut
)


@dataclass(slots=True, kw_only=True)
class GroupSettings:
    """What the broker's settings say about groups; replaced fields count from the next command on."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2**31 - 1
    new_member_timeout_ms: int = 300_000
    """A member that never had an answer cannot send heartbeats; its join is forgotten after this."""
    offset_metadata_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_ms: int = 600_000
