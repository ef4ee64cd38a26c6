"""The rules of consumer groups (KIP-848): heartbeats that join, stay and leave, time-outs, and who is fenced.

`mixed_groups` serves classic members of such groups; `migration` changes the protocol of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from millrace.coordinator.decision import NOTHING, Decision, Record, SetTimer, Timer, Token, Unstored
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID
from millrace.core.override import override
from millrace.groups import commands
from millrace.groups.assigned_group import apply_to_group
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer import migration
from millrace.groups.consumer.changes import ConsumerChanges
from millrace.groups.consumer.commands import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    UNCHANGED,
    Beat,
    ConsumerHeartbeat,
    ConsumerSettings,
    PatternsResolved,
    RejoinExpired,
    ResyncExpired,
    RevocationExpired,
    SessionExpired,
)
from millrace.groups.consumer.group import ConsumerGroup, member_tombstones, session_timer
from millrace.groups.consumer.member import NOTHING_OWNED, ConsumerMember, MemberState
from millrace.groups.consumer.mixed_groups import MixedGroups
from millrace.groups.consumer.reconciliation import check_epoch
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedInstance,
    GroupError,
    GroupFull,
    GroupNotFound,
    InconsistentProtocol,
    InvalidHeartbeat,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from millrace.groups.kinds import ConsumerRules, Group
from millrace.groups.offsets.committed import Offsets
from millrace.wire.messages.group_records import GROUP_RECORDS, ConsumerGroupMetadataKey

_FIRST_RECORD: Final = 3
"""The records with lower numbers are of classic groups and of offsets."""


def keep_offsets(shard: Shard, group_id: str) -> None:
    """Leave a group that only has offsets where another one was."""
    if group_id in shard.offsets.by_group:
        shard.groups[group_id] = ClassicGroup(group_id, shard.settings)


class Shard(Protocol):
    """What holds the groups of one partition of `__consumer_offsets`."""

    settings: GroupSettings
    groups: dict[str, Group]
    offsets: Offsets


class GroupsOfConsumers(ConsumerRules):
    """Decides on commands of consumer groups, and applies their records; one for each partition."""

    group_type: type = ConsumerGroup
    key_types: tuple[type, ...] = tuple(
        schema.key for schema in GROUP_RECORDS if schema.number >= _FIRST_RECORD
    )
    may_become_classic = True

    def __init__(
        self,
        shard: Shard,
        topics: ConsumerTopics,
        settings: Callable[[], ConsumerSettings],
        group_configs: Callable[[str], Mapping[str, str]],
        patterns_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`patterns_loaded` is called when stored patterns are loaded: topics may have changed since they
        were matched."""
        self._shard = shard
        self._topics = topics
        self._settings = settings
        self._group_configs = group_configs
        self._patterns_loaded = patterns_loaded
        self.changes = ConsumerChanges(topics, settings)
        self._mixed = MixedGroups(self.changes, topics, settings, self.remove)
        self._decide: dict[type, Callable[[Any, int], Decision[object]]] = {
            ConsumerHeartbeat: self._heartbeat,
            SessionExpired: self._member_expired,
            RevocationExpired: self._revocation_expired,
            RejoinExpired: self._rejoin_expired,
            ResyncExpired: self._member_expired,
            PatternsResolved: self._patterns_resolved,
        }
        self.command_types: tuple[type, ...] = tuple(self._decide)

    @override
    def decide(self, command: Any, now_ms: int, token: Token) -> Decision[object]:
        decide = self._decide.get(type(command))
        try:
            if decide is not None:
                return decide(command, now_ms)
            return self._classic(command, now_ms, token)
        except GroupError as error:
            # Rules raise before they have changed anything.
            return Decision(error=error)

    @override
    def apply(self, record: Record) -> None:
        apply_to_group(
            self._shard.groups,
            record,
            ConsumerGroup,
            ConsumerGroupMetadataKey,
            lambda group_id: keep_offsets(self._shard, group_id),
        )

    @override
    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        assert isinstance(group, ConsumerGroup), group
        timers: list[Timer] = []
        if any(member.topic_pattern for member in group.members.values()):
            self._patterns_loaded()
        for member in group.members.values():
            timers.append(self._session_timer(group, member))
            if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                expired = RevocationExpired(group.group_id, member.member_id, member.epoch)
                name = ("revocation", group.group_id, member.member_id)
                timers.append(SetTimer(name, member.rebalance_timeout_ms, expired))
        return tuple(timers)

    @override
    def refusals(self, group: Group, command: commands.CommitOffsets) -> list[MillraceError | None] | None:
        if not isinstance(group, ConsumerGroup) or command.member_id not in group.members:
            return None
        return [
            group.check_commit_of(
                member_id=command.member_id,
                generation=command.generation,
                topic_id=self._topics.id_of(each.topic) or NO_TOPIC_ID
                if each.topic_id == NO_TOPIC_ID
                else each.topic_id,
                partition=each.partition,
            )
            for each in command.offsets
        ]

    def session_timeout_ms(self, group_id: str) -> int:
        settings = self._settings()
        own = self._group_configs(group_id).get("consumer.session.timeout.ms")
        return settings.session_timeout_ms if own is None else int(own)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        settings = self._settings()
        own = self._group_configs(group_id).get("consumer.heartbeat.interval.ms")
        return settings.heartbeat_interval_ms if own is None else int(own)

    # Heartbeats.

    def _heartbeat(self, beat: ConsumerHeartbeat, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(beat.group_id)
        if type(group) is ConsumerGroup:
            member = group.members.get(beat.member_id)
            if member is not None and self._is_idle(group, member, beat):
                group.last_heartbeat_ms[member.member_id] = now_ms
                return self._idle_answer(group, member)
        self._check_request(beat)
        out = Effects()
        if beat.member_epoch < 0:
            return self._leave(self._present_group(beat.group_id), beat, out, now_ms)
        if type(group) is not ConsumerGroup:
            if beat.member_epoch != JOINING:
                self._present_group(beat.group_id)
            group = self._made_group(beat.group_id, group, out, now_ms)
            return self._stay(group, beat, out, now_ms)
        decision = self._stay(group, beat, out, now_ms)
        # Each record makes sense without the next ones, and the epoch comes last: so the assignment of a
        # large group may fill more than one batch.
        return decision if self._is_replacing(group, beat) else replace(decision, is_atomic=False)

    def _is_replacing(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> bool:
        return beat.member_epoch == JOINING and beat.instance_id in group.static_members

    def _is_idle(self, group: ConsumerGroup, member: ConsumerMember, beat: ConsumerHeartbeat) -> bool:
        """Whether a heartbeat changes nothing, as most do: the member says nothing new, has reached its
        target, and no topic has changed."""
        return (
            beat.member_epoch == member.epoch == group.assignment_epoch == group.epoch
            and member.state is MemberState.STABLE
            and beat.topic_names is None
            and beat.topic_pattern is None
            and beat.rebalance_timeout_ms == UNCHANGED
            and beat.server_assignor is None
            and beat.rack is None
            and (beat.instance_id is None or beat.instance_id == member.instance_id)
            and member.classic is None
            and group.checked_revision == self._topics.revision
        )

    def _idle_answer(self, group: ConsumerGroup, member: ConsumerMember) -> Decision[object]:
        if self._group_configs(group.group_id):
            interval_ms = self.heartbeat_interval_ms(group.group_id)
            timeout_ms = self.session_timeout_ms(group.group_id)
        else:
            # Nearly all groups have no settings of their own, and this is nearly all that they ever ask.
            settings = self._settings()
            interval_ms, timeout_ms = settings.heartbeat_interval_ms, settings.session_timeout_ms
        ready = group.idle.get(member.member_id)
        if (
            ready is None
            or ready.response != (member.member_id, member.epoch, interval_ms, None)
            or ready.timers[0].delay_ms != timeout_ms  # type: ignore[union-attr]
        ):
            ready = group.idle[member.member_id] = Decision(
                timers=(session_timer(group.group_id, member.member_id, timeout_ms),),
                response=Beat(member.member_id, member.epoch, interval_ms),
            )
        return ready

    def _check_request(self, beat: ConsumerHeartbeat) -> None:
        if not beat.group_id:
            raise InvalidHeartbeat("GroupId can't be empty.")
        if not beat.member_id and (beat.member_epoch != JOINING or not beat.new_member_id):
            raise InvalidHeartbeat("MemberId can't be empty.")
        if beat.instance_id == "" or beat.rack == "":
            raise InvalidHeartbeat("InstanceId and RackId can't be empty.")
        if beat.member_epoch == JOINING:
            if beat.rebalance_timeout_ms == UNCHANGED:
                raise InvalidHeartbeat("RebalanceTimeoutMs must be provided in first request.")
            if beat.owned is None or beat.owned:
                raise InvalidHeartbeat("TopicPartitions must be empty when (re-)joining.")
            if beat.topic_names is None and beat.topic_pattern is None:
                raise InvalidHeartbeat(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
                )
        elif beat.member_epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None:
            raise InvalidHeartbeat("InstanceId can't be null.")
        elif beat.member_epoch < LEAVING_FOR_A_WHILE:
            raise InvalidHeartbeat("MemberEpoch is invalid.")
        known = self._settings().assignors
        if beat.server_assignor is not None and beat.server_assignor not in known:
            raise UnsupportedAssignor(beat.server_assignor, known=", ".join(known))

    def _present_group(self, group_id: str) -> ConsumerGroup:
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise GroupNotFound(group_id, "not found" if group is None else "is not a consumer group")

    def _made_group(self, group_id: str, present: Group | None, out: Effects, now_ms: int) -> ConsumerGroup:
        """A new group, made from the classic one of this name if there is one that may be converted."""
        made = ConsumerGroup(group_id)
        if present is None:
            return made
        if not isinstance(present, ClassicGroup):
            raise GroupNotFound(group_id, "is not a consumer group")
        if present.is_empty:
            out.records += present.tombstones()
            return made
        for record in migration.upgrade(present, self._settings(), self._topics, out, now_ms):
            made.apply(record)
        for member in made.members.values():
            out.timers.append(self._session_timer(made, member))
        return made

    def _stay(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, out: Effects, now_ms: int
    ) -> Decision[object]:
        size_max = self._settings().size_max
        is_new = beat.member_id not in group.members and beat.instance_id not in group.static_members
        if is_new and len(group.members) >= size_max:
            raise GroupFull(group.group_id, size_max=size_max)
        group, before = self._member_of(group, beat, out)
        member_id = beat.member_id or beat.new_member_id
        told = _updated(before or ConsumerMember(member_id=member_id), beat)
        after = self.changes.advance(
            group, before, told, owned=beat.owned, resolved=beat.resolved, out=out, now_ms=now_ms
        )
        out.timers.append(self._session_timer(group, after))
        live = self._shard.groups.get(group.group_id)
        if isinstance(live, ConsumerGroup):
            live.last_heartbeat_ms[member_id] = now_ms
        is_full = (
            beat.rebalance_timeout_ms != UNCHANGED
            and (beat.topic_names is not None or beat.topic_pattern is not None)
            and beat.owned is not None
        )
        has_changed = before is None or after.assigned != before.assigned
        out.response = Beat(
            member_id,
            after.epoch,
            self.heartbeat_interval_ms(group.group_id),
            {topic: sorted(after.assigned[topic]) for topic in sorted(after.assigned)}
            if is_full or has_changed or beat.member_epoch == JOINING
            else None,
        )
        return out.decision()

    def _member_of(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, out: Effects
    ) -> tuple[ConsumerGroup, ConsumerMember | None]:
        """The group and the member that sends a heartbeat, None for a new one. The group is a changed copy if
        a static member is back."""
        is_joining = beat.member_epoch == JOINING
        if beat.instance_id is None:
            member = group.members.get(beat.member_id)
            if member is None and not is_joining:
                raise UnknownMember(group.group_id, beat.member_id)
        else:
            known_as = group.static_members.get(beat.instance_id)
            member = None if known_as is None else group.members[known_as]
            if is_joining and member is not None:
                if member.classic is None and member.epoch != LEAVING_FOR_A_WHILE:
                    raise UnreleasedInstance(beat.instance_id, member.member_id)
                group = self.replace_member(group, member, beat.member_id or beat.new_member_id, out)
                return group, group.members[beat.member_id or beat.new_member_id]
            if member is None and not is_joining:
                raise UnknownMember(group.group_id, beat.instance_id)
            if member is not None and member.member_id != beat.member_id:
                raise FencedInstance(beat.instance_id, beat.member_id)
        if member is not None and not is_joining:
            check_epoch(member, beat.member_epoch, beat.owned)
        return group, member

    def replace_member(
        self, group: ConsumerGroup, old: ConsumerMember, new_id: str, out: Effects
    ) -> ConsumerGroup:
        return migration.replace_member(group, old, new_id, out)

    # Leaving and being sent away.

    def _leave(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, out: Effects, now_ms: int
    ) -> Decision[object]:
        if beat.instance_id is None:
            member = group.members.get(beat.member_id)
            if member is None:
                raise UnknownMember(group.group_id, beat.member_id)
        else:
            known_as = group.static_members.get(beat.instance_id)
            if known_as is None:
                raise UnknownMember(group.group_id, beat.instance_id)
            if known_as != beat.member_id:
                raise FencedInstance(beat.instance_id, beat.member_id)
            member = group.members[known_as]
        out.response = Beat(beat.member_id, beat.member_epoch, 0)
        if beat.instance_id is not None and beat.member_epoch == LEAVING_FOR_A_WHILE:
            # The member's session goes on: whoever brings the instance id within it gets the same partitions.
            away = replace(member, epoch=LEAVING_FOR_A_WHILE, revoking=NOTHING_OWNED)
            out.records.append(away.assignment_record(group.group_id))
            out.cancel_timer(("revocation", group.group_id, member.member_id))
            return out.decision()
        self.remove(group, [member.member_id], out, now_ms)
        return out.decision()

    def remove(self, group: ConsumerGroup, member_ids: list[str], out: Effects, now_ms: int) -> None:
        """Remove members from the group, which becomes a classic one if only classic members are left."""
        for member_id in member_ids:
            for name in ("session", "revocation", "rejoin", "resync"):
                out.cancel_timer((name, group.group_id, member_id))
        remaining = [member for member in group.members.values() if member.member_id not in member_ids]
        if migration.may_downgrade(remaining, self._settings(), self._shard.settings):
            migration.downgrade(group, remaining, self._topics, self._shard.settings, out, now_ms)
            return
        for member_id in member_ids:
            out.records += member_tombstones(group.group_id, member_id)
        self.changes.after_removal(group, member_ids, out)

    def _member_expired(self, expired: SessionExpired | ResyncExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        if not isinstance(group, ConsumerGroup) or expired.member_id not in group.members:
            return NOTHING
        out = Effects()
        self.remove(group, [expired.member_id], out, now_ms)
        return out.decision()

    def _revocation_expired(self, expired: RevocationExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        member = group.members.get(expired.member_id) if isinstance(group, ConsumerGroup) else None
        if member is None or member.epoch != expired.member_epoch:
            return NOTHING
        return self._member_expired(SessionExpired(expired.group_id, expired.member_id), now_ms)

    def _rejoin_expired(self, expired: RejoinExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        if not isinstance(group, ConsumerGroup) or expired.member_id not in group.rejoining:
            return NOTHING
        return self._member_expired(SessionExpired(expired.group_id, expired.member_id), now_ms)

    # Patterns and classic members.

    def _patterns_resolved(self, found: PatternsResolved, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(found.group_id)
        out = Effects()
        out.response = commands.DONE
        if isinstance(group, ConsumerGroup):
            self.changes.patterns_resolved(group, found.resolved, out, now_ms)
        return out.decision()

    def _classic(self, command: commands.ClassicCommand, now_ms: int, token: Token) -> Decision[object]:
        group = self._shard.groups.get(command.group_id)
        assert isinstance(group, ConsumerGroup), group
        if isinstance(command, commands.Join):
            replaced = self._last_consumer_replaced(group, command)
            if replaced is not None:
                return self._downgrade_and_join(group, replaced, command, now_ms, token)
        return self._mixed.decide(group, command, now_ms)

    def _last_consumer_replaced(self, group: ConsumerGroup, join: commands.Join) -> ConsumerMember | None:
        """The static member that comes back as a classic one, if it was the last of the consumer protocol."""
        known_as = group.static_members.get(join.instance_id or "")
        if known_as is None or join.member_id or not self._settings().allows_downgrade:
            return None
        member = group.members[known_as]
        others = (each for each in group.members.values() if each is not member)
        is_last = member.classic is None and all(each.classic is not None for each in others)
        return member if is_last else None

    def _downgrade_and_join(
        self, group: ConsumerGroup, replaced: ConsumerMember, join: commands.Join, now_ms: int, token: Token
    ) -> Decision[object]:
        out = Effects()
        for name in ("session", "revocation"):
            out.cancel_timer((name, group.group_id, replaced.member_id))
        remaining = [member for member in group.members.values() if member is not replaced]
        if remaining:
            classic = migration.downgrade(group, remaining, self._topics, self._shard.settings, out, now_ms)
        else:
            classic = ClassicGroup(group.group_id, self._shard.settings)
            out.records += group.tombstones()
            out.records.append(classic.record(now_ms))
            out.unstored.append(Unstored(classic))
        if not classic.supports(join.protocol_type, join.protocols):
            raise InconsistentProtocol(group.group_id, "no assignor is common to its classic members")
        classic.join(join, token, out, now_ms)
        return out.decision()

    def _session_timer(self, group: ConsumerGroup, member: ConsumerMember) -> SetTimer:
        if member.classic is not None:
            return session_timer(group.group_id, member.member_id, member.classic.session_timeout_ms)
        return session_timer(group.group_id, member.member_id, self.session_timeout_ms(group.group_id))


def _updated(member: ConsumerMember, beat: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the changes that the heartbeat tells."""
    return replace(
        member,
        instance_id=member.instance_id if beat.instance_id is None else beat.instance_id,
        rack=member.rack if beat.rack is None else beat.rack,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if beat.rebalance_timeout_ms == UNCHANGED
            else beat.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor if beat.server_assignor is None else beat.server_assignor,
        topic_names=(
            member.topic_names if beat.topic_names is None else tuple(sorted(dict.fromkeys(beat.topic_names)))
        ),
        topic_pattern=member.topic_pattern if beat.topic_pattern is None else beat.topic_pattern,
        client_id=beat.client_id,
        client_host=beat.client_host,
        classic=None,
    )
