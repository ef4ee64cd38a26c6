"""The rules of one classic group: who belongs to it, which generation it is in, who waits for what.

States. A group is Empty until somebody joins. PreparingRebalance collects the members' JoinGroups;
CompletingRebalance waits for the leader's assignment; Stable lasts until something changes. A generation
begins when all have joined, or when those who did not have had their rebalance time-out: then dynamic members
that stayed away are dropped and static ones kept.

What is stored. Kafka's format stores a generation when its assignment is known, or when the group has become
empty, and nothing in between. So `stored` is the state that survives, and changes only where records are
applied. Everything else here is soft state: the operations below change it while a command is decided, and it
is lost with the coordinator. The members then find a Stable group of the last generation, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Final

from millrace.coordinator.decision import Decision, Record, SetTimer, Timer, Token
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.classic.member import Member
from millrace.groups.classic.roster import Roster
from millrace.groups.classic.timers import GroupTimers
from millrace.groups.commands import (
    DONE,
    NO_MEMBER,
    GroupSettings,
    Heartbeat,
    InitialDelayPassed,
    Join,
    Joined,
    JoinedMember,
    LeavingMember,
    Protocol,
    Sync,
    Synced,
    SyncTimedOut,
)
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedInstance,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from millrace.wire.messages.group_records import GroupMetadataKey, GroupMetadataValue

CONSUMER: Final = "consumer"
"""The protocol type of consumers, whose subscriptions the broker can read."""


class State(Enum):
    """Where a group is between two generations; the values are what tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """One group of the classic protocol, with its roster and its timers.

    Commands and timers call the public operations with `out`, which collects what they lead to. The other
    methods are questions, and change nothing."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.stored: GroupMetadataValue | None = None
        self.state = State.EMPTY
        self.state_since_ms = -1
        self.generation = 0
        self.protocol_type_or_none: str | None = None
        self.protocol: str | None = None
        self.roster = Roster()
        self._timers = GroupTimers(group_id)
        self.rebalance_reason = ""
        self._topics: frozenset[str] | None = None
        self._was_empty = True
        self._new_member_came = False

    @override
    def __repr__(self) -> str:
        return f"<ClassicGroup {self.group_id} {self.state.value} {self.generation} {list(self.members)}>"

    @property
    def members(self) -> dict[str, Member]:
        """The members, in the order of joining."""
        return self.roster.members

    @property
    def leader(self) -> str | None:
        """The member that makes the assignment."""
        return self.roster.leader

    # What is stored.

    @classmethod
    def restored(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings) -> ClassicGroup:
        """The group of a record: Stable in that generation, or Empty."""
        group = cls(group_id, settings)
        group.stored = value
        group.generation = value.generation
        group.protocol_type_or_none = value.protocol_type or None
        group.protocol = value.protocol
        group.state_since_ms = value.current_state_timestamp
        for each in value.members:
            group.roster.add(Member.restored(each, value.protocol))
        group.roster.leader = value.leader
        group.state = State.STABLE if group.members else State.EMPTY
        group._was_empty = not group.members
        group._topics = group._subscribed_topics()
        return group

    def resume(self) -> tuple[Timer, ...]:
        """The timers after loading: every member must show itself within its session's time-out."""
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
                members=[member.stored(self.protocol) for member in self.members.values()],
            ),
        )

    def tombstones(self) -> tuple[Record, ...]:
        return (Record(GroupMetadataKey(group=self.group_id), None),)

    # Joining.

    def join(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        """Answer a JoinGroup with the next generation, or at once with the present one or an error."""
        if not self._accepts(join.member_id):
            if join.member_id:
                self._forget(join.member_id, out)
            out.error = GroupFull(self.group_id, size_max=self.settings.size_max)
        elif self.state is State.DEAD:
            out.error = CoordinatorNotAvailable(f"group {self.group_id} is being removed")
        elif not self.supports(join.protocol_type, join.protocols):
            out.error = InconsistentProtocol(
                self.group_id,
                f"{join.protocol_type} with {', '.join(each.name for each in join.protocols) or 'nothing'} "
                "does not fit its members",
            )
        elif join.member_id == NO_MEMBER:
            self._join_new(join, token, out, now_ms)
        else:
            self._join_known(join, token, out, now_ms)

    def _accepts(self, member_id: str) -> bool:
        if self.state in (State.EMPTY, State.DEAD):
            return True
        member = self.members.get(member_id)
        if self.state is State.PREPARING:
            is_waiting = member is not None and member.join_token is not None
            return is_waiting or self.roster.joined_count < self.settings.size_max
        return member is not None or len(self.members) < self.settings.size_max

    def _join_new(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        known = self.roster.static_member(join.instance_id)
        if known is not None:
            self._replace_static(known, join, token, out, now_ms)
        elif join.instance_id is None and join.requires_known_member_id:
            self.roster.pending_joins[join.new_member_id] = None
            out.timers.append(self._timers.session(join.new_member_id, join.session_timeout_ms))
            out.error = MemberIdRequired(join.new_member_id)
        else:
            self._add(join.new_member_id, join, token, out, now_ms)

    def _join_known(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        if join.member_id in self.roster.pending_joins:
            self._add(join.member_id, join, token, out, now_ms)
            return
        error = self.check_member(join.member_id, join.instance_id)
        if error is not None:
            out.error = error
            return
        member = self.members[join.member_id]
        is_same = member.protocols == tuple(join.protocols)
        if self.state is State.COMPLETING and is_same:
            # The member did not see the answer to its JoinGroup; to repeat it takes no new generation.
            self._touch(member, out, now_ms)
            out.response = self._joined(member)
        elif self.state is State.STABLE and is_same and member.member_id != self.leader:
            self._touch(member, out, now_ms)
            out.response = self._joined(member)
        elif self.state is State.EMPTY:
            out.error = UnknownMember(self.group_id, join.member_id)
        else:
            self._update(member, join, token, out)
            why = "its leader joins again" if member.member_id == self.leader else "its subscription changed"
            self._rebalance(f"{member.member_id}: {join.reason or why}", out, now_ms)

    def _add(self, member_id: str, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        if not self.members:
            self.protocol_type_or_none = join.protocol_type
        member = Member.joining(member_id, join, now_ms)
        member.join_token = token
        member.is_new = True
        self.roster.add(member)
        if self.state is State.PREPARING and self._was_empty:
            self._new_member_came = True
        out.timers.append(self._timers.session(member_id, self.settings.new_member_timeout_ms))
        self._rebalance(f"{member_id} joins: {join.reason or 'not provided'}", out, now_ms)

    def _update(self, member: Member, join: Join, token: Token, out: Effects) -> None:
        if member.join_token is not None:
            # The client has given up on its earlier request: tell whoever still waits for it to ask again.
            out.reply(member.join_token, RebalanceInProgress(self.group_id))
        member.join_token = token
        member.update(join)

    def _replace_static(self, old: Member, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        """Take a static member back under a new id: it keeps its place, and its old id is fenced."""
        assert join.instance_id is not None
        self._answer_waiting(old, FencedInstance(join.instance_id, old.member_id), out)
        self._timers.end_session(old.member_id, out)
        was_leader = self.leader == old.member_id
        member = Member.joining(join.new_member_id, join, now_ms)
        member.assignment = old.assignment
        member.last_commit_ms = old.last_commit_ms
        self.roster.replace(old, member)
        if self.state is State.STABLE and self.roster.preferred_protocol() == self.protocol:
            self._touch(member, out, now_ms)
            out.records.append(self.record(now_ms))
            joined = self._joined(member)
            if was_leader and join.supports_skipped_assignment:
                joined = replace(joined, skip_assignment=True)
            elif was_leader:
                # A client that cannot be told to skip the assignment must not think that it leads.
                joined = replace(joined, leader=old.member_id, members=())
            out.response = joined
            return
        member.join_token = token
        self._touch(member, out, now_ms)
        self._rebalance(f"static member {join.instance_id} is back with another protocol", out, now_ms)

    # Rebalancing.

    def _rebalance(self, reason: str, out: Effects, now_ms: int) -> None:
        """Begin a rebalance, or go on with the one under way."""
        if self.state is State.PREPARING:
            self._maybe_complete_join(out, now_ms)
            return
        self.prepare_rebalance(reason, out, now_ms)

    def prepare_rebalance(self, reason: str, out: Effects, now_ms: int) -> None:
        """Let all members join again; they learn of it with their next heartbeat."""
        self.rebalance_reason = reason
        if self.state is State.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                self._answer_sync(member, RebalanceInProgress(self.group_id), out, now_ms)
        self._timers.end_syncs(out)
        self.roster.pending_syncs.clear()
        self._was_empty = self.state is State.EMPTY
        self._enter(State.PREPARING, now_ms)
        timeout_ms = self.roster.rebalance_timeout_ms
        if self._was_empty:
            self._new_member_came = False
            self._timers.await_first_joins(self.settings.initial_rebalance_delay_ms, timeout_ms, out)
            return
        self._timers.await_joins(timeout_ms, out)
        self._maybe_complete_join(out, now_ms)

    def initial_delay_passed(self, passed: InitialDelayPassed, out: Effects, now_ms: int) -> None:
        if self.state is not State.PREPARING:
            return
        if self._new_member_came and passed.remaining_ms > 0:
            self._new_member_came = False
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._timers.await_first_joins(delay_ms, passed.remaining_ms, out)
            return
        self._complete_join(out, now_ms)

    def join_timed_out(self, out: Effects, now_ms: int) -> None:
        if self.state is State.PREPARING:
            self._complete_join(out, now_ms)

    def _maybe_complete_join(self, out: Effects, now_ms: int) -> None:
        if self.state is State.PREPARING and not self._was_empty and self.roster.is_complete:
            self._complete_join(out, now_ms)

    def _complete_join(self, out: Effects, now_ms: int) -> None:
        """Begin the next generation with those who have joined, and static members who may come back."""
        self._timers.end_joins(out)
        for member in list(self.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._forget(member.member_id, out)
        if self.members and not self.roster.elect_leader():
            # Only static members are left, and none of them has joined: the generation waits for one.
            self._timers.await_joins(self.roster.rebalance_timeout_ms, out)
            return
        self.generation += 1
        self.roster.pending_syncs.clear()
        if not self.members:
            self.protocol = None
            self.roster.leader = None
            self._topics = self._subscribed_topics()
            self._enter(State.EMPTY, now_ms)
            out.records.append(self.record(now_ms))
            return
        self.protocol = self.roster.preferred_protocol()
        self._topics = self._subscribed_topics()
        self._enter(State.COMPLETING, now_ms)
        for member in self.members.values():
            token, member.join_token = member.join_token, None
            member.is_new = False
            self.roster.pending_syncs[member.member_id] = None
            self._touch(member, out, now_ms)
            if token is not None:
                out.reply(token, self._joined(member))
        self._timers.await_syncs(self.generation, self.roster.rebalance_timeout_ms, out)

    # Synchronising.

    def sync(self, sync: Sync, token: Token, out: Effects, now_ms: int) -> None:
        """Answer a SyncGroup when the leader has sent the assignment."""
        error = self.check_generation(sync.member_id, sync.instance_id, sync.generation)
        if error is None and (
            (sync.protocol_type is not None and sync.protocol_type != self.protocol_type_or_none)
            or (sync.protocol is not None and sync.protocol != self.protocol)
        ):
            error = InconsistentProtocol(
                self.group_id, f"it has agreed on {self.protocol_type_or_none} with {self.protocol}"
            )
        if error is None and self.state is State.PREPARING:
            error = RebalanceInProgress(self.group_id)
        if error is not None:
            out.error = error
            return
        member = self.members[sync.member_id]
        self.roster.pending_syncs.pop(member.member_id, None)
        if self.state is State.STABLE:
            self._touch(member, out, now_ms)
            out.response = self._synced(member)
            return
        if member.sync_token is not None:
            out.reply(member.sync_token, RebalanceInProgress(self.group_id))
        member.sync_token = token
        if member.member_id == self.leader:
            self._take_assignment(dict(sync.assignments), out, now_ms)

    def _take_assignment(self, assignments: dict[str, bytes], out: Effects, now_ms: int) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._enter(State.STABLE, now_ms)
        out.records.append(self.record(now_ms))
        if not self.roster.pending_syncs:
            self._timers.end_syncs(out)
        for member in self.members.values():
            self._answer_sync(member, self._synced(member), out, now_ms)

    def sync_timed_out(self, timed_out: SyncTimedOut, out: Effects, now_ms: int) -> None:
        """Drop the members that joined a generation and never asked for their part of it."""
        if timed_out.generation != self.generation or not self.roster.pending_syncs:
            return
        if self.state in (State.COMPLETING, State.STABLE):
            for member_id in list(self.roster.pending_syncs):
                self._forget(member_id, out)
            self.prepare_rebalance("members did not ask for their assignment in time", out, now_ms)

    # Staying and leaving.

    def heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> MillraceError | None:
        """Take a sign of life; the error is the answer: REBALANCE_IN_PROGRESS calls the member to join again.

        The shell restarts the session's timer for None and RebalanceInProgress alike."""
        error = self.check_generation(heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not None:
            return error
        self.roster.members[heartbeat.member_id].last_heartbeat_ms = now_ms
        return RebalanceInProgress(self.group_id) if self.state is State.PREPARING else None

    def session_timer(self, member_id: str) -> SetTimer:
        return self._session_timer(self.members[member_id])

    def alive(self, member: Member) -> Decision[object]:
        """The decision for a member that has shown itself, if there is nothing to tell it."""
        ready = member.alive
        if ready is None:
            ready = member.alive = Decision(timers=(self._session_timer(member),), response=DONE)
        return ready

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        member = self.roster.members.get(member_id)
        if member is None:
            return ()
        member.last_commit_ms = now_ms
        ready = member.alive
        return (self.alive(member) if ready is None else ready).timers

    def leave(
        self, members: Iterable[LeavingMember], out: Effects, now_ms: int
    ) -> list[tuple[LeavingMember, MillraceError | None]]:
        answers: list[tuple[LeavingMember, MillraceError | None]] = []
        has_left = False
        for leaving in members:
            error = self._leave(leaving, out)
            has_left = has_left or error is None
            answers.append((leaving, error))
        if has_left:
            reasons = ", ".join(each.reason or "not provided" for each, error in answers if error is None)
            self._after_removal(f"members leave: {reasons}", out, now_ms)
        return answers

    def _leave(self, leaving: LeavingMember, out: Effects) -> MillraceError | None:
        member_id = leaving.member_id
        if member_id == NO_MEMBER and leaving.instance_id is not None:
            known_as = self.roster.static_members.get(leaving.instance_id)
            if known_as is None:
                return UnknownMember(self.group_id, leaving.instance_id)
            member_id = known_as
        elif member_id in self.roster.pending_joins:
            self._forget(member_id, out)
            return None
        else:
            error = self.check_member(member_id, leaving.instance_id)
            if error is not None:
                return error
        self._forget(member_id, out)
        return None

    def member_timed_out(self, member_id: str, out: Effects, now_ms: int) -> None:
        if member_id in self.roster.pending_joins:
            self._forget(member_id, out)
            self._maybe_complete_join(out, now_ms)
            return
        member = self.members.get(member_id)
        # A member that waits for an answer sends no heartbeats; only an unanswered join is too old by now.
        if member is None or (member.is_waiting and not member.is_new):
            return
        self._forget(member_id, out)
        self._after_removal(f"{member_id} was not heard of for its session time-out", out, now_ms)

    def _after_removal(self, reason: str, out: Effects, now_ms: int) -> None:
        if self.state in (State.STABLE, State.COMPLETING):
            self.prepare_rebalance(reason, out, now_ms)
        elif self.state is State.PREPARING:
            self._maybe_complete_join(out, now_ms)

    def _forget(self, member_id: str, out: Effects) -> None:
        self._timers.end_session(member_id, out)
        member = self.roster.remove(member_id)
        if member is not None:
            self._answer_waiting(member, UnknownMember(self.group_id, member_id), out)

    # Checks.

    def check_member(self, member_id: str, instance_id: str | None) -> MillraceError | None:
        if instance_id is not None:
            known_as = self.roster.static_members.get(instance_id)
            if known_as is None:
                return UnknownMember(self.group_id, member_id)
            if known_as != member_id:
                return FencedInstance(instance_id, member_id)
        return None if member_id in self.roster.members else UnknownMember(self.group_id, member_id)

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
            # This is an admin client, or a consumer that does without the group's protocol.
            return None
        if generation == self.generation and instance_id is None and member_id in self.roster.members:
            # A member of the present generation, as most are.
            error = None
        elif generation >= 0 or member_id != NO_MEMBER or instance_id is not None:
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

    # What the machine asks.

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

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        common = self.roster.common_protocols()
        return protocol_type == self.protocol_type_or_none and any(each.name in common for each in protocols)

    def _subscribed_topics(self) -> frozenset[str] | None:
        return self.roster.topics(self.protocol) if self.protocol_type_or_none == CONSUMER else None

    # Answers.

    def _answer_sync(self, member: Member, outcome: object, out: Effects, now_ms: int) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self._touch(member, out, now_ms)
            out.reply(token, outcome)

    def _answer_waiting(self, member: Member, error: MillraceError, out: Effects) -> None:
        for token in (member.join_token, member.sync_token):
            if token is not None:
                out.reply(token, error)
        member.join_token = member.sync_token = None

    def _touch(self, member: Member, out: Effects, now_ms: int) -> None:
        member.last_heartbeat_ms = now_ms
        out.timers.append(self._session_timer(member))

    def _enter(self, state: State, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

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
        return self._timers.session(member.member_id, member.session_timeout_ms)
