"""What a classic group is at a moment: its fields, their stored form, and questions that change nothing.

What happens to a group, and how it changes then, is in `group.py`; its note says what is stored and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, Self

from millrace.coordinator.decision import Record, SetTimer, Timer
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.classic.member import Member
from millrace.groups.classic.subscriptions import subscribed_topics
from millrace.groups.commands import (
    NO_MEMBER,
    GroupSettings,
    Joined,
    JoinedMember,
    MemberTimedOut,
    Protocol,
    Synced,
)
from millrace.groups.errors import (
    FencedInstance,
    GroupNotEmpty,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMember,
)
from millrace.wire.messages.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata

CONSUMER: Final = "consumer"
"""The protocol type of consumers, whose subscriptions the broker can read."""
NO_TOPICS: Final[frozenset[str]] = frozenset()


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicState:
    """The part of a group that is asked: no method here changes one that exists."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.stored: GroupMetadataValue | None = None
        self.state = State.EMPTY
        self.state_since_ms = -1
        self.generation = 0
        self.protocol_type_or_none: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        """In the order of joining, which assignors and elections see."""
        self.static_members: dict[str, str] = {}
        self.pending_joins: dict[str, None] = {}
        """Ids given out to members that have not joined with them yet."""
        self.pending_syncs: dict[str, None] = {}
        self.rebalance_reason = ""
        self._topics: frozenset[str] | None = None
        self._was_empty = True
        self._new_member_came = False

    @override
    def __repr__(self) -> str:
        return f"<ClassicGroup {self.group_id} {self.state.value} {self.generation} {list(self.members)}>"

    # What is stored.

    @classmethod
    def restored(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings) -> Self:
        """The group of a record: Stable in that generation, or Empty."""
        group = cls(group_id, settings)
        group.stored = value
        group.generation = value.generation
        group.protocol_type_or_none = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        group.state_since_ms = value.current_state_timestamp
        for each in value.members:
            group.members[each.member_id] = Member(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout,
                rebalance_timeout_ms=(
                    each.rebalance_timeout if each.rebalance_timeout >= 0 else each.session_timeout
                ),
                protocols=(Protocol(value.protocol or "", each.subscription),),
                assignment=each.assignment,
            )
            if each.group_instance_id is not None:
                group.static_members[each.group_instance_id] = each.member_id
        group.state = State.STABLE if group.members else State.EMPTY
        group._was_empty = not group.members
        group._topics = group._compute_topics()
        return group

    def resume(self) -> tuple[Timer, ...]:
        """After loading: every member must show itself within its session's time-out."""
        return tuple(self._session_timer(member) for member in self.members.values())

    def record(self, now_ms: int) -> Record:
        """The present generation, to be stored."""
        return Record(
            GroupMetadataKey(group=self.group_id),
            GroupMetadataValue(
                protocol_type=self.protocol_type_or_none or "",
                generation=self.generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=self.state_since_ms if self.state_since_ms >= 0 else now_ms,
                members=[
                    MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata_for(self.protocol),
                        assignment=member.assignment,
                    )
                    for member in self.members.values()
                ],
            ),
        )

    # Checks.

    def check_member(self, member_id: str, instance_id: str | None) -> MillraceError | None:
        if instance_id is not None:
            known_as = self.static_members.get(instance_id)
            if known_as is None:
                return UnknownMember(self.group_id, member_id)
            if known_as != member_id:
                return FencedInstance(instance_id, member_id)
        return None if member_id in self.members else UnknownMember(self.group_id, member_id)

    def check_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        error = self.check_member(member_id, instance_id)
        if error is None and generation != self.generation:
            return IllegalGeneration(self.group_id, generation, current=self.generation)
        return error

    def check_commit(
        self, *, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        if generation < 0 and self.state is State.EMPTY:
            # An admin client, or a consumer that does without the group's protocol.
            return None
        if generation >= 0 or member_id != NO_MEMBER or instance_id is not None:
            error = self.check_generation(member_id, instance_id, generation)
        else:
            error = None if self.state is State.EMPTY else UnknownMember(self.group_id, member_id)
        if error is None and self.state is State.COMPLETING:
            return RebalanceInProgress(self.group_id)
        return error

    def check_fetch(self, *, member_id: str | None, member_epoch: int) -> MillraceError | None:
        return None

    def check_offset_delete(self) -> MillraceError | None:
        if self.members and self.protocol_type_or_none != CONSUMER:
            return GroupNotEmpty(self.group_id)
        return None

    # What it tells the shard.

    @property
    def type_name(self) -> str:
        return "classic"

    @property
    def protocol_type(self) -> str:
        return self.protocol_type_or_none or ""

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def is_subscribed(self, topic: str) -> bool:
        if self._topics is None:
            return self.protocol_type_or_none == CONSUMER
        return topic in self._topics

    def offsets_age_since(self, commit_ms: int) -> int | None:
        if self.protocol_type_or_none is None:
            return commit_ms
        if self.state is State.EMPTY:
            return self.state_since_ms if self.state_since_ms >= 0 else commit_ms
        if self.protocol_type_or_none == CONSUMER and self._topics is not None and self.state is State.STABLE:
            return commit_ms
        return None

    def tombstones(self) -> tuple[Record, ...]:
        return (Record(GroupMetadataKey(group=self.group_id), None),)

    # What its members have in common.

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type_or_none and any(each.name in common for each in protocols)

    def _select_protocol(self) -> str | None:
        """The protocol that all support and most prefer; a draw goes to the one that the oldest member
        prefers."""
        common = self._common_protocols()
        votes = dict.fromkeys(common, 0)
        for member in self.members.values():
            for offered in member.protocols:
                if offered.name in votes:
                    votes[offered.name] += 1
                    break
        return max(votes, key=lambda name: votes[name], default=None)

    def _common_protocols(self) -> dict[str, None]:
        members = list(self.members.values())
        first = dict.fromkeys(offered.name for offered in members[0].protocols) if members else {}
        for member in members[1:]:
            offered = {each.name for each in member.protocols}
            first = {name: None for name in first if name in offered}
        return first

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _compute_topics(self) -> frozenset[str] | None:
        """What the members are subscribed to; None where the broker cannot know it."""
        if self.protocol_type_or_none != CONSUMER:
            return None
        if not self.members:
            return NO_TOPICS
        if self.protocol is None:
            return None
        return subscribed_topics(member.metadata_for(self.protocol) for member in self.members.values())

    # Parts of answers.

    def _joined(self, member: Member) -> Joined:
        is_leader = member.member_id == self.leader
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type_or_none,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=self._members_for_leader() if is_leader else (),
        )

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type_or_none, self.protocol, member.assignment)

    def _session_timer(self, member: Member) -> SetTimer:
        return SetTimer(
            ("session", self.group_id, member.member_id),
            member.session_timeout_ms,
            MemberTimedOut(self.group_id, member.member_id),
        )
