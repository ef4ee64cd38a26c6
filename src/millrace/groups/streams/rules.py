"""The rules of streams groups (KIP-1071): heartbeats that join, stay and leave, and time-outs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.coordinator.decision import NOTHING, Decision, Record, SetTimer, Timer, Token
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups import commands
from millrace.groups.assigned_group import apply_to_group
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.consumer.commands import UNCHANGED
from millrace.groups.consumer.member import MemberState
from millrace.groups.consumer.reconciliation import check_epoch
from millrace.groups.consumer.rules import Shard, keep_offsets
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import GroupError, GroupFull, GroupNotFound, UnknownMember
from millrace.groups.kinds import Group, GroupRules
from millrace.groups.streams.changes import StreamsChanges
from millrace.groups.streams.commands import (
    JOINING,
    InitialAssignmentDue,
    Status,
    StatusCode,
    StreamsBeat,
    StreamsHeartbeat,
    StreamsRevocationExpired,
    StreamsSessionExpired,
    StreamsSettings,
)
from millrace.groups.streams.endpoints import endpoint_partitions
from millrace.groups.streams.group import StreamsGroup, member_tombstones
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.requests import check_heartbeat
from millrace.groups.streams.tasks import OwnedTasks, Role
from millrace.groups.streams.topology import Topology
from millrace.wire.messages.streams_group_records import STREAMS_GROUP_RECORDS, StreamsGroupMetadataKey


class GroupsOfStreams(GroupRules):
    """Decides on commands of streams groups, and applies their records; one for each partition."""

    group_type = StreamsGroup
    command_types = (
        StreamsHeartbeat,
        StreamsSessionExpired,
        StreamsRevocationExpired,
        InitialAssignmentDue,
    )
    key_types = tuple(schema.key for schema in STREAMS_GROUP_RECORDS)
    may_become_classic = True

    def __init__(
        self, shard: Shard, topics: ConsumerTopics, settings_of: Callable[[str], StreamsSettings]
    ) -> None:
        self._shard = shard
        self._topics = topics
        self._settings_of = settings_of
        self._changes = StreamsChanges(topics, settings_of)
        self._decide: dict[type, Callable[[Any, int], Decision[object]]] = {
            StreamsHeartbeat: self._heartbeat,
            StreamsSessionExpired: self._session_expired,
            StreamsRevocationExpired: self._revocation_expired,
            InitialAssignmentDue: self._initial_assignment_due,
        }

    @override
    def decide(self, command: Any, now_ms: int, token: Token) -> Decision[object]:
        try:
            return self._decide[type(command)](command, now_ms)
        except GroupError as error:
            # Rules raise before they have changed anything.
            return Decision(error=error)

    @override
    def apply(self, record: Record) -> None:
        apply_to_group(
            self._shard.groups,
            record,
            StreamsGroup,
            StreamsGroupMetadataKey,
            lambda group_id: keep_offsets(self._shard, group_id),
        )

    @override
    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        assert isinstance(group, StreamsGroup), group
        timers: list[Timer] = []
        timeout_ms = self._settings_of(group.group_id).session_timeout_ms
        for member in group.members.values():
            timers.append(_session_timer(group.group_id, member.member_id, timeout_ms))
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                expired = StreamsRevocationExpired(group.group_id, member.member_id, member.epoch)
                name = ("revocation", group.group_id, member.member_id)
                timers.append(SetTimer(name, member.rebalance_timeout_ms, expired))
        return tuple(timers)

    @override
    def refusals(self, group: Group, command: commands.CommitOffsets) -> list[MillraceError | None] | None:
        if not isinstance(group, StreamsGroup) or command.member_id not in group.members:
            return None
        return [
            group.check_commit_of(
                member_id=command.member_id,
                generation=command.generation,
                topic=each.topic,
                partition=each.partition,
            )
            for each in command.offsets
        ]

    # Heartbeats.

    def _heartbeat(self, beat: StreamsHeartbeat, now_ms: int) -> Decision[object]:
        check_heartbeat(beat)
        if beat.member_epoch < 0:
            return self._leave(self._present_group(beat.group_id), beat)
        out = Effects()
        present = self._shard.groups.get(beat.group_id)
        if isinstance(present, StreamsGroup):
            decision = self._stay(present, beat, out, now_ms)
            present.last_heartbeat_ms[beat.member_id] = now_ms
            # Each record makes sense without the next ones, and the epoch comes last: so the assignment of a
            # large group may fill more than one batch.
            return replace(decision, is_atomic=False)
        if beat.member_epoch != JOINING or not (present is None or isinstance(present, ClassicGroup)):
            self._present_group(beat.group_id)
        if present is not None:
            if not present.is_empty:
                raise GroupNotFound(beat.group_id, "is not a streams group")
            out.records += present.tombstones()
        return self._stay(StreamsGroup(beat.group_id), beat, out, now_ms)

    def _present_group(self, group_id: str) -> StreamsGroup:
        group = self._shard.groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        raise GroupNotFound(group_id, "not found" if group is None else "is not a streams group")

    def _stay(
        self, group: StreamsGroup, beat: StreamsHeartbeat, out: Effects, now_ms: int
    ) -> Decision[object]:
        owned = _owned(beat)
        before = self._member_of(group, beat, owned)
        told = _updated(before or StreamsMember(member_id=beat.member_id), beat)
        if told != before:
            out.records.append(told.metadata_record(group.group_id))
        new_topology = None if beat.topology is None else Topology(beat.topology)
        topology = self._changes.topology_for(group, told, new_topology, out)
        statuses: list[Status] = []
        if told.topology_epoch < topology.epoch:
            statuses.append(
                Status(
                    StatusCode.STALE_TOPOLOGY,
                    f"The member's topology epoch {told.topology_epoch} is behind the group's topology epoch "
                    f"{topology.epoch}.",
                )
            )
        after, missing = self._changes.advance(
            group, before, told, topology, owned=owned, statuses=statuses, out=out, now_ms=now_ms
        )
        settings = self._settings_of(group.group_id)
        out.timers.append(_session_timer(group.group_id, after.member_id, settings.session_timeout_ms))
        if beat.shuts_down and group.shut_down_by is None:
            group.shut_down_by = beat.member_id
        if group.shut_down_by is not None:
            statuses.append(
                Status(
                    StatusCode.SHUTDOWN_APPLICATION,
                    f"Streams group member {group.shut_down_by} encountered a fatal error and requested a "
                    "shutdown for the entire application.",
                )
            )
        beaten = self._answer(group, before, after, beat, topology)
        out.response = beaten._replace(statuses=tuple(statuses), missing_topics=missing)
        return out.decision()

    def _member_of(
        self, group: StreamsGroup, beat: StreamsHeartbeat, owned: OwnedTasks | None
    ) -> StreamsMember | None:
        """The member that sends a heartbeat, None for a new one."""
        member = group.members.get(beat.member_id)
        if member is None:
            if beat.member_epoch != JOINING:
                raise UnknownMember(group.group_id, beat.member_id)
            size_max = self._settings_of(group.group_id).size_max
            if len(group.members) >= size_max:
                raise GroupFull(group.group_id, size_max=size_max)
        elif beat.member_epoch != JOINING:
            check_epoch(member, beat.member_epoch, owned)
        return member

    def _answer(
        self,
        group: StreamsGroup,
        before: StreamsMember | None,
        after: StreamsMember,
        beat: StreamsHeartbeat,
        topology: Topology,
    ) -> StreamsBeat:
        is_live = self._shard.groups.get(group.group_id) is group
        has_news = beat.member_epoch == JOINING or before is None or after.assigned != before.assigned
        if has_news and after.endpoint is not None and is_live:
            group.endpoint_epoch += 1
        endpoints = None
        if group.endpoint_epoch != beat.endpoint_epoch:
            members = [each for each in group.members.values() if each.member_id != after.member_id]
            endpoints = endpoint_partitions([*members, after], topology, self._topics.partitions_of)
        return StreamsBeat(
            after.member_id,
            after.epoch,
            self._settings_of(group.group_id).heartbeat_interval_ms,
            {place: sorted(numbers) for place, numbers in after.assigned.items()} if has_news else None,
            endpoint_epoch=group.endpoint_epoch,
            endpoints=endpoints,
        )

    # Leaving and being sent away.

    def _leave(self, group: StreamsGroup, beat: StreamsHeartbeat) -> Decision[object]:
        member = group.members.get(beat.member_id)
        if member is None:
            raise UnknownMember(group.group_id, beat.member_id)
        if beat.shuts_down and group.shut_down_by is None:
            group.shut_down_by = beat.member_id
        out = Effects()
        self._remove(group, beat.member_id, out)
        out.response = StreamsBeat(beat.member_id, beat.member_epoch)
        return out.decision()

    def _remove(self, group: StreamsGroup, member_id: str, out: Effects) -> None:
        for name in ("session", "revocation"):
            out.cancel_timer((name, group.group_id, member_id))
        out.records += member_tombstones(group.group_id, member_id)
        self._changes.after_removal(group, out)

    def _session_expired(self, expired: StreamsSessionExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        if not isinstance(group, StreamsGroup) or expired.member_id not in group.members:
            return NOTHING
        out = Effects()
        self._remove(group, expired.member_id, out)
        return out.decision()

    def _revocation_expired(self, expired: StreamsRevocationExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        member = group.members.get(expired.member_id) if isinstance(group, StreamsGroup) else None
        if member is None or member.epoch != expired.member_epoch:
            return NOTHING
        return self._session_expired(StreamsSessionExpired(expired.group_id, expired.member_id), now_ms)

    def _initial_assignment_due(self, due: InitialAssignmentDue, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(due.group_id)
        out = Effects()
        out.response = commands.DONE
        self._changes.initial_assignment(
            due.group_id, group if isinstance(group, StreamsGroup) else None, out, now_ms
        )
        return out.decision()


def _session_timer(group_id: str, member_id: str, timeout_ms: int) -> SetTimer:
    return SetTimer(("session", group_id, member_id), timeout_ms, StreamsSessionExpired(group_id, member_id))


def _owned(beat: StreamsHeartbeat) -> OwnedTasks | None:
    if beat.active is None or beat.standby is None or beat.warmup is None:
        return None
    return [
        ((role, subtopology), numbers)
        for role, tasks in zip(Role, (beat.active, beat.standby, beat.warmup), strict=True)
        for subtopology, numbers in tasks
    ]


def _updated(member: StreamsMember, beat: StreamsHeartbeat) -> StreamsMember:
    """The member with the changes that the heartbeat tells."""
    return replace(
        member,
        rack=member.rack if beat.rack is None else beat.rack,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if beat.rebalance_timeout_ms == UNCHANGED
            else beat.rebalance_timeout_ms
        ),
        topology_epoch=member.topology_epoch if beat.topology is None else beat.topology.epoch,
        process_id=member.process_id if beat.process_id is None else beat.process_id,
        endpoint=member.endpoint if beat.endpoint is None else beat.endpoint,
        client_tags=member.client_tags if beat.client_tags is None else dict(beat.client_tags),
        client_id=beat.client_id,
        client_host=beat.client_host,
    )
