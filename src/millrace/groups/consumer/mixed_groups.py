"""Classic members inside a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup without a leader.

A member's generation is its epoch; the group calls it to join again whenever there is a step for it to take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace.coordinator.decision import NOTHING, Decision
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.groups.classic.subscriptions import parse_subscription
from millrace.groups.commands import (
    DONE,
    ClassicCommand,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Left,
    Sync,
    Synced,
)
from millrace.groups.consumer.changes import ConsumerChanges
from millrace.groups.consumer.commands import ConsumerSettings, RejoinExpired, ResyncExpired
from millrace.groups.consumer.group import CONSUMER, ConsumerGroup, session_timer
from millrace.groups.consumer.member import ClassicSide, ConsumerMember, MemberState
from millrace.groups.consumer.migration import classic_assignment, replace_member
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from millrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

Remove = Callable[[ConsumerGroup, list[str], Effects, int], None]


class MixedGroups:
    """Decides on commands of classic members of consumer groups."""

    def __init__(
        self,
        changes: ConsumerChanges,
        topics: ConsumerTopics,
        settings: Callable[[], ConsumerSettings],
        remove: Remove,
    ) -> None:
        self._changes = changes
        self._topics = topics
        self._settings = settings
        self._remove = remove

    def decide(self, group: ConsumerGroup, command: ClassicCommand, now_ms: int) -> Decision[object]:
        """Decide a classic command. Timers that the group set while it was classic mean nothing here."""
        match command:
            case Heartbeat():
                return self._heartbeat(group, command, now_ms)
            case Join():
                return self._join(group, command, now_ms)
            case Sync():
                return self._sync(group, command)
            case Leave():
                return self._leave(group, command, now_ms)
            case _:
                return NOTHING

    # Joining.

    def _join(self, group: ConsumerGroup, join: Join, now_ms: int) -> Decision[object]:
        settings = self._settings()
        if not settings.allows_upgrade and not settings.allows_downgrade:
            raise InconsistentProtocol(group.group_id, "classic members may not join it")
        size_max = settings.size_max
        if len(group.members) >= size_max and join.member_id not in group.members:
            raise GroupFull(group.group_id, size_max=size_max)
        subscription = self._subscription(group, join)
        if not join.member_id and join.instance_id is None and join.requires_known_member_id:
            raise MemberIdRequired(join.new_member_id)
        out = Effects()
        member_id = join.member_id or join.new_member_id
        group_before = group
        group, before = self._member_of(group, join, member_id, out)
        told = replace(
            before or ConsumerMember(member_id=member_id),
            instance_id=join.instance_id,
            rack=subscription.rack_id,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            server_assignor=None,
            topic_names=tuple(sorted(dict.fromkeys(subscription.topics))),
            topic_pattern="",
            client_id=join.client_id,
            client_host=join.client_host,
            classic=ClassicSide(join.session_timeout_ms, tuple(join.protocols)),
        )
        after = self._changes.advance(
            group, before, told, owned=self._owned(subscription), resolved=None, out=out, now_ms=now_ms
        )
        group_before.rejoining.pop(member_id, None)
        group_before.last_heartbeat_ms[member_id] = now_ms
        group_id = group.group_id
        out.cancel_timer(("rejoin", group_id, member_id))
        out.timers.append(session_timer(group_id, member_id, join.session_timeout_ms))
        expired = ResyncExpired(group_id, member_id)
        out.set_timer(("resync", group_id, member_id), join.rebalance_timeout_ms, expired)
        out.response = Joined(
            generation=after.epoch,
            protocol_type=CONSUMER,
            protocol=join.protocols[0].name,
            leader="",
            member_id=member_id,
        )
        return out.decision()

    def _subscription(self, group: ConsumerGroup, join: Join) -> ConsumerProtocolSubscription:
        if join.protocol_type != CONSUMER or not join.protocols:
            raise InconsistentProtocol(group.group_id, "its members are consumers")
        offered = {each.name for each in join.protocols}
        for member in group.members.values():
            if member.classic is not None and member.member_id != join.member_id:
                offered.intersection_update(each.name for each in member.classic.protocols)
        if not offered:
            raise InconsistentProtocol(group.group_id, "no assignor is common to its classic members")
        subscription = parse_subscription(join.protocols[0].metadata)
        if subscription is None:
            raise InconsistentProtocol(group.group_id, "the subscription cannot be read")
        return subscription

    def _owned(self, subscription: ConsumerProtocolSubscription) -> list[tuple[TopicId, list[int]]]:
        owned = []
        for each in subscription.owned_partitions:
            topic_id = self._topics.id_of(each.topic)
            if topic_id is not None:
                owned.append((topic_id, each.partitions))
        return owned

    def _member_of(
        self, group: ConsumerGroup, join: Join, member_id: str, out: Effects
    ) -> tuple[ConsumerGroup, ConsumerMember | None]:
        if join.instance_id is None:
            return group, group.members.get(member_id)
        known_as = group.static_members.get(join.instance_id)
        if not join.member_id:
            if known_as is None:
                return group, None
            group = replace_member(group, group.members[known_as], member_id, out)
            return group, group.members[member_id]
        if known_as is None:
            raise UnknownMember(group.group_id, join.instance_id)
        if known_as != join.member_id:
            raise FencedInstance(join.instance_id, join.member_id)
        return group, group.members[known_as]

    # What follows a join.

    def _sync(self, group: ConsumerGroup, sync: Sync) -> Decision[object]:
        member, classic = self._classic_member(group, sync.member_id, sync.instance_id)
        if sync.generation != member.epoch:
            raise IllegalGeneration(group.group_id, sync.generation, current=member.epoch)
        protocol = classic.protocols[0]
        if sync.protocol_type not in (None, CONSUMER) or sync.protocol not in (None, protocol.name):
            raise InconsistentProtocol(group.group_id, f"the member has joined with {protocol.name}")
        out = Effects()
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._call_to_rejoin(group, member, out)
            out.error = RebalanceInProgress(group.group_id)
            return out.decision()
        out.cancel_timer(("resync", group.group_id, member.member_id))
        out.timers.append(session_timer(group.group_id, member.member_id, classic.session_timeout_ms))
        assigned = {topic: frozenset(epochs) for topic, epochs in member.assigned.items()}
        out.response = Synced(
            CONSUMER, protocol.name, classic_assignment(assigned, protocol.metadata, self._topics)
        )
        return out.decision()

    def _heartbeat(self, group: ConsumerGroup, beat: Heartbeat, now_ms: int) -> Decision[object]:
        member, classic = self._classic_member(group, beat.member_id, beat.instance_id)
        if beat.generation != member.epoch:
            raise IllegalGeneration(group.group_id, beat.generation, current=member.epoch)
        group.last_heartbeat_ms[member.member_id] = now_ms
        out = Effects()
        out.timers.append(session_timer(group.group_id, member.member_id, classic.session_timeout_ms))
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not _is_waiting(group, member))
        ):
            self._call_to_rejoin(group, member, out)
            out.error = RebalanceInProgress(group.group_id)
        else:
            out.response = DONE
        return out.decision()

    def _call_to_rejoin(self, group: ConsumerGroup, member: ConsumerMember, out: Effects) -> None:
        """Have the member join again. Its time for that runs from the first call on."""
        if member.member_id not in group.rejoining:
            group.rejoining[member.member_id] = None
            expired = RejoinExpired(group.group_id, member.member_id)
            name = ("rejoin", group.group_id, member.member_id)
            out.set_timer(name, member.rebalance_timeout_ms, expired)

    def _leave(self, group: ConsumerGroup, leave: Leave, now_ms: int) -> Decision[object]:
        answers: list[tuple[LeavingMember, MillraceError | None]] = []
        leaving: dict[str, None] = {}
        for each in leave.members:
            member_id = each.member_id
            if not member_id and each.instance_id is not None:
                member_id = group.static_members.get(each.instance_id, "")
            try:
                # Administrators may send any static member away.
                if each.member_id or not member_id:
                    self._classic_member(group, member_id, each.instance_id)
            except (UnknownMember, FencedInstance) as error:
                answers.append((each, error))
                continue
            leaving[member_id] = None
            answers.append((each, None))
        out = Effects()
        out.response = Left(answers)
        if leaving:
            self._remove(group, list(leaving), out, now_ms)
        return out.decision()

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicSide]:
        if instance_id is not None:
            known_as = group.static_members.get(instance_id)
            if known_as is None:
                raise UnknownMember(group.group_id, instance_id)
            if known_as != member_id:
                raise FencedInstance(instance_id, member_id)
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            raise UnknownMember(group.group_id, member_id)
        return member, member.classic


def _is_waiting(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether somebody else still has a partition that the member is to get."""
    return any(
        group.owner_of(topic, partition) not in (None, member.member_id)
        for topic, partitions in group.target_of(member.member_id).items()
        for partition in partitions
    )
