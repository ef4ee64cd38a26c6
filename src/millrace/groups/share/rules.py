"""The rules of share groups: heartbeats that join, stay and leave, time-outs, and what has stored state.

Members only get partitions whose state is stored. A heartbeat that finds others asks its caller to have their
state prepared; `StateInitialized` then says that it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from millrace.coordinator.decision import NOTHING, Decision, Record, SetTimer, Timer, Token
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.groups.assigned_group import apply_to_group
from millrace.groups.commands import DONE
from millrace.groups.consumer.commands import JOINING, LEAVING, Beat
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedMemberEpoch,
    GroupError,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    InvalidHeartbeat,
    UnknownMember,
)
from millrace.groups.kinds import Group, GroupRules
from millrace.groups.share.changes import ShareChanges
from millrace.groups.share.commands import (
    AlterShareOffsets,
    BeatBeforeState,
    BeginStateDeletion,
    ShareGroupSettings,
    ShareHeartbeat,
    ShareSessionExpired,
    StateDeleted,
    StateInitialized,
    StateNotInitialized,
    StateToDelete,
    StateToInitialize,
)
from millrace.groups.share.group import ShareGroup, member_tombstones
from millrace.groups.share.member import ShareMember
from millrace.groups.share.state_topics import UNNAMED, NamedPartitions, NamedTopics
from millrace.wire.messages.share_group_records import SHARE_GROUP_RECORDS, ShareGroupMetadataKey

MEMBER_ID_LENGTH_MAX: Final = 36


class Shard(Protocol):
    """What holds the groups of one partition of `__consumer_offsets`."""

    groups: dict[str, Group]


class RulesOfShareGroups(GroupRules):
    """Decides on commands of share groups, and applies their records; one for each partition."""

    group_type: type = ShareGroup
    key_types: tuple[type, ...] = tuple(schema.key for schema in SHARE_GROUP_RECORDS)
    may_become_classic = False
    groups_expire = False

    def __init__(
        self, shard: Shard, topics: ConsumerTopics, settings: Callable[[str], ShareGroupSettings]
    ) -> None:
        """`settings` gives those of a group, by its id."""
        self._shard = shard
        self._topics = topics
        self._settings = settings
        self._changes = ShareChanges(topics)
        self._tried_ms: dict[str, dict[TopicId, int]] = {}
        """When the state of topics was last begun to be prepared, by group."""
        self._decide: dict[type, Callable[[Any, int], Decision[object]]] = {
            ShareHeartbeat: self._heartbeat,
            ShareSessionExpired: self._member_expired,
            StateInitialized: self._state_initialized,
            StateNotInitialized: self._state_not_initialized,
            AlterShareOffsets: self._alter_offsets,
            BeginStateDeletion: self._begin_state_deletion,
            StateDeleted: self._state_deleted,
        }
        self.command_types: tuple[type, ...] = tuple(self._decide)

    @override
    def decide(self, command: Any, now_ms: int, token: Token) -> Decision[object]:
        try:
            return self._decide[type(command)](command, now_ms)
        except GroupError as error:
            # Rules raise before they have changed anything.
            return Decision(error=error)

    @override
    def apply(self, record: Record) -> None:
        apply_to_group(self._shard.groups, record, ShareGroup, ShareGroupMetadataKey, self._forget_tries)

    def _forget_tries(self, group_id: str) -> None:
        self._tried_ms.pop(group_id, None)

    @override
    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        assert isinstance(group, ShareGroup), group
        return tuple(self._session_timer(group.group_id, member_id) for member_id in group.members)

    @override
    def topics_deleted(self, topic_ids: Sequence[TopicId]) -> Iterable[Record]:
        # Their state goes with them, without a word of ours.
        for group in self._shard.groups.values():
            if isinstance(group, ShareGroup):
                left = group.state.without(topic_ids)
                if left != group.state:
                    yield left.record(group.group_id)

    # Heartbeats.

    def _heartbeat(self, beat: ShareHeartbeat, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(beat.group_id)
        if type(group) is ShareGroup:
            member = group.members.get(beat.member_id)
            if member is not None and self._is_idle(group, member, beat):
                group.last_heartbeat_ms[member.member_id] = now_ms
                return self._idle_answer(group, member)
        _check_request(beat)
        out = Effects()
        if beat.member_epoch == LEAVING:
            return self._leave(self._present_group(beat.group_id), beat, out)
        if group is None and beat.member_epoch == JOINING:
            group = ShareGroup(beat.group_id)
        else:
            group = self._present_group(beat.group_id)
        settings = self._settings(beat.group_id)
        if beat.member_id not in group.members and len(group.members) >= settings.size_max:
            raise GroupFull(beat.group_id, size_max=settings.size_max)
        return self._stay(group, _member_of(group, beat), beat, settings, out, now_ms)

    def _is_idle(self, group: ShareGroup, member: ShareMember, beat: ShareHeartbeat) -> bool:
        """Whether a heartbeat changes nothing, as most do: the member says nothing new, has its target, and
        neither topics nor the state of partitions have changed."""
        return (
            beat.member_epoch == member.epoch == group.assignment_epoch == group.epoch
            and beat.topic_names is None
            and beat.rack is None
            and group.is_settled
            and group.checked_revision == self._topics.revision
        )

    def _idle_answer(self, group: ShareGroup, member: ShareMember) -> Decision[object]:
        settings = self._settings(group.group_id)
        ready = group.idle.get(member.member_id)
        if (
            ready is None
            or ready.response != (member.member_id, member.epoch, settings.heartbeat_interval_ms, None)
            or ready.timers[0].delay_ms != settings.session_timeout_ms  # type: ignore[union-attr]
        ):
            ready = group.idle[member.member_id] = Decision(
                timers=(self._session_timer(group.group_id, member.member_id),),
                response=Beat(member.member_id, member.epoch, settings.heartbeat_interval_ms),
            )
        return ready

    def _stay(
        self,
        group: ShareGroup,
        before: ShareMember | None,
        beat: ShareHeartbeat,
        settings: ShareGroupSettings,
        out: Effects,
        now_ms: int,
    ) -> Decision[object]:
        told = _updated(before or ShareMember(member_id=beat.member_id), beat)
        after, epoch = self._changes.advance(group, before, told, settings, out, now_ms)
        out.timers.append(self._session_timer(group.group_id, beat.member_id))
        group.last_heartbeat_ms[beat.member_id] = now_ms
        has_changed = before is None or after.assigned != before.assigned
        answer = Beat(
            beat.member_id,
            after.epoch,
            settings.heartbeat_interval_ms,
            {topic: sorted(after.assigned[topic]) for topic in sorted(after.assigned)}
            if has_changed or beat.topic_names is not None
            else None,
        )
        missing = self._missing_state(group, told, settings, now_ms)
        if missing:
            out.records.append(group.state.begun(missing).record(group.group_id))
            tried = self._tried_ms.setdefault(group.group_id, {})
            tried.update(dict.fromkeys(missing, now_ms))
            partitions = {topic: named.partitions for topic, named in missing.items()}
            out.response = BeatBeforeState(answer, StateToInitialize(epoch, partitions))
            return out.decision()
        group.is_settled = not out.records and not group.state.initializing
        out.response = answer
        # Each record makes sense without the next ones, and the epoch comes last: so the assignment of a
        # large group may fill more than one batch.
        return replace(out.decision(), is_atomic=False)

    def _missing_state(
        self, group: ShareGroup, told: ShareMember, settings: ShareGroupSettings, now_ms: int
    ) -> NamedTopics:
        """What the members subscribe to and has no state; what is being prepared is left out, for a while."""
        names = dict.fromkeys(told.topic_names)
        for member_id, member in group.members.items():
            if member_id != told.member_id:
                names.update(dict.fromkeys(member.topic_names))
        missing: dict[TopicId, NamedPartitions] = {}
        tried = self._tried_ms.get(group.group_id, {})
        for name in names:
            for topic, shape in self._topics.shapes_of([name]).items():
                wanted = frozenset(range(shape.partition_count))
                ready = group.state.initialized.get(topic)
                begun = group.state.initializing.get(topic)
                if ready is not None:
                    wanted -= ready.partitions
                # A clock that was set back must not keep a group from its partitions.
                is_under_way = topic in tried and 0 <= now_ms - tried[topic] < settings.initialize_retry_ms
                if begun is not None and is_under_way:
                    wanted -= begun.partitions
                if wanted:
                    missing[topic] = NamedPartitions(name, wanted)
        return missing

    def _present_group(self, group_id: str) -> ShareGroup:
        group = self._shard.groups.get(group_id)
        if isinstance(group, ShareGroup):
            return group
        raise GroupNotFound(group_id, "not found" if group is None else "is not a share group")

    # Members that go.

    def _leave(self, group: ShareGroup, beat: ShareHeartbeat, out: Effects) -> Decision[object]:
        if beat.member_id not in group.members:
            raise UnknownMember(group.group_id, beat.member_id)
        self._remove(group, beat.member_id, out)
        out.response = Beat(beat.member_id, LEAVING, 0)
        return out.decision()

    def _member_expired(self, expired: ShareSessionExpired, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(expired.group_id)
        if not isinstance(group, ShareGroup) or expired.member_id not in group.members:
            return NOTHING
        out = Effects()
        self._remove(group, expired.member_id, out)
        return out.decision()

    def _remove(self, group: ShareGroup, member_id: str, out: Effects) -> None:
        out.cancel_timer(("session", group.group_id, member_id))
        out.records += member_tombstones(group.group_id, member_id)
        self._changes.after_removal(group, member_id, out)

    def _session_timer(self, group_id: str, member_id: str) -> SetTimer:
        return SetTimer(
            ("session", group_id, member_id),
            self._settings(group_id).session_timeout_ms,
            ShareSessionExpired(group_id, member_id),
        )

    # The state of partitions.

    def _state_initialized(self, done: StateInitialized, now_ms: int) -> Decision[object]:
        return self._state_settled(done.group_id, done.partitions, is_there=True)

    def _state_not_initialized(self, failed: StateNotInitialized, now_ms: int) -> Decision[object]:
        return self._state_settled(failed.group_id, failed.partitions, is_there=False)

    def _state_settled(
        self, group_id: str, partitions: Mapping[TopicId, frozenset[int]], *, is_there: bool
    ) -> Decision[object]:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return Decision(error=GroupNotFound(group_id))
        tried = self._tried_ms.get(group_id, {})
        for topic in partitions:
            tried.pop(topic, None)
        after = group.state.done(partitions) if is_there else group.state.failed(partitions)
        records = () if after == group.state else (after.record(group_id),)
        return Decision(records=records, response=DONE)

    def _alter_offsets(self, command: AlterShareOffsets, now_ms: int) -> Decision[object]:
        group = self._shard.groups.get(command.group_id)
        if group is None:
            group = ShareGroup(command.group_id)
        elif not isinstance(group, ShareGroup):
            raise GroupNotFound(command.group_id, "is not a share group")
        if not group.is_empty and not self._settings(command.group_id).is_paused:
            # Of a group that is paused, nothing is given out meanwhile: leaders look for its new state first.
            raise GroupNotEmpty(command.group_id)
        if not command.partitions:
            return Decision(response=StateToInitialize(group.epoch, {}))
        # With a new epoch, nobody who still has the old state can write any of it.
        epoch = group.epoch + 1
        topics = {
            topic: NamedPartitions(self._topics.name_of(topic) or UNNAMED, partitions)
            for topic, partitions in command.partitions.items()
        }
        out = Effects()
        self._changes.store_epoch(group, epoch, group.metadata_hash, out)
        out.records.append(group.state.begun(topics).record(group.group_id))
        tried = self._tried_ms.setdefault(group.group_id, {})
        tried.update(dict.fromkeys(topics, now_ms))
        out.response = StateToInitialize(epoch, command.partitions)
        return out.decision()

    def _begin_state_deletion(self, command: BeginStateDeletion, now_ms: int) -> Decision[object]:
        group = self._present_group(command.group_id)
        if not group.is_empty:
            raise GroupNotEmpty(command.group_id)
        state = group.state
        known = dict.fromkeys((*state.initialized, *state.initializing, *state.deleting))
        chosen = known if command.topic_ids is None else [each for each in command.topic_ids if each in known]
        partitions: dict[TopicId, frozenset[int]] = {}
        for topic in chosen:
            found: frozenset[int] = frozenset()
            for named in (state.initialized.get(topic), state.initializing.get(topic)):
                found |= frozenset() if named is None else named.partitions
            if topic in state.deleting:
                # What an earlier attempt left is not known: all that the topic has may have state.
                found |= self._all_partitions(state.deleting[topic])
            if found:
                partitions[topic] = found
        after = state.leaving(chosen)
        records = () if after == state else (after.record(group.group_id),)
        return Decision(records=records, response=StateToDelete(partitions))

    def _all_partitions(self, name: str) -> frozenset[int]:
        shapes = self._topics.shapes_of([name])
        return frozenset(number for shape in shapes.values() for number in range(shape.partition_count))

    def _state_deleted(self, command: StateDeleted, now_ms: int) -> Decision[object]:
        group = self._present_group(command.group_id)
        after = group.state.without(command.topic_ids)
        records = () if after == group.state else (after.record(group.group_id),)
        return Decision(records=records, response=DONE)


def _check_request(beat: ShareHeartbeat) -> None:
    if not beat.member_id:
        raise InvalidHeartbeat("MemberId can't be empty.")
    if len(beat.member_id) > MEMBER_ID_LENGTH_MAX:
        raise InvalidHeartbeat(f"MemberId can't have more than {MEMBER_ID_LENGTH_MAX} characters.")
    if not beat.group_id:
        raise InvalidHeartbeat("GroupId can't be empty.")
    if beat.rack == "":
        raise InvalidHeartbeat("RackId can't be empty.")
    if beat.member_epoch == JOINING and not beat.topic_names:
        raise InvalidHeartbeat("SubscribedTopicNames must be set in first request.")
    if beat.member_epoch < LEAVING:
        raise InvalidHeartbeat("MemberEpoch is invalid.")


def _member_of(group: ShareGroup, beat: ShareHeartbeat) -> ShareMember | None:
    """The member that sends a heartbeat, None for a new one. The epoch before the present one is let pass:
    the answer with the new one may have been lost."""
    member = group.members.get(beat.member_id)
    if beat.member_epoch == JOINING:
        return member
    if member is None:
        raise UnknownMember(group.group_id, beat.member_id)
    if beat.member_epoch not in (member.epoch, member.previous_epoch):
        raise FencedMemberEpoch(beat.member_id, beat.member_epoch, current=member.epoch)
    return member


def _updated(member: ShareMember, beat: ShareHeartbeat) -> ShareMember:
    """The member with the changes that the heartbeat tells."""
    return replace(
        member,
        rack=member.rack if beat.rack is None else beat.rack,
        topic_names=(
            member.topic_names if beat.topic_names is None else tuple(sorted(dict.fromkeys(beat.topic_names)))
        ),
        client_id=beat.client_id,
        client_host=beat.client_host,
    )
