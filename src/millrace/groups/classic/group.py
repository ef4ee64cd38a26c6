"""The rules of one classic group: who belongs to it, which generation it is in, who waits for what.

States. A group is Empty until somebody joins. PreparingRebalance collects the members' JoinGroups;
CompletingRebalance waits for the leader's assignment; Stable lasts until something changes. A generation
begins when all have joined, or when those who did not have had their rebalance time-out: then dynamic members
that stayed away are dropped and static ones kept.

What is stored. Kafka's format stores a generation when its assignment is known, or when the group has become
empty, and nothing in between. So `stored` is the state that survives, and changes where records are applied;
everything else here is of the moment, changes while a command is decided, and is lost with the coordinator:
the members then find a Stable group of the last generation, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.coordinator.decision import Decision, SetTimer, Timer, Token
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.errors import MillraceError
from millrace.groups.classic.classic_state import ClassicState, State
from millrace.groups.classic.member import Member
from millrace.groups.commands import (
    DONE,
    NO_MEMBER,
    Heartbeat,
    InitialDelayPassed,
    Join,
    Joined,
    JoinTimedOut,
    LeavingMember,
    MemberTimedOut,
    Sync,
    SyncTimedOut,
)
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedInstance,
    GroupFull,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)


class ClassicGroup(ClassicState):
    """One group, and what happens to it."""

    # Joining.

    def join(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        """A JoinGroup: answered with the next generation, or at once with the present one or an error."""
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
                "does not fit to its members",
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
            waiting = sum(1 for each in self.members.values() if each.join_token is not None)
            return (member is not None and member.join_token is not None) or waiting < self.settings.size_max
        return member is not None or len(self.members) < self.settings.size_max

    def _join_new(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        known_as = None if join.instance_id is None else self.static_members.get(join.instance_id)
        if known_as is not None:
            self._replace_static(self.members[known_as], join, token, out, now_ms)
        elif join.instance_id is None and join.requires_known_member_id:
            self.pending_joins[join.new_member_id] = None
            out.set_timer(
                ("session", self.group_id, join.new_member_id),
                join.session_timeout_ms,
                MemberTimedOut(self.group_id, join.new_member_id),
            )
            out.error = MemberIdRequired(join.new_member_id)
        else:
            self._add(join.new_member_id, join, token, out, now_ms)

    def _join_known(self, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        if join.member_id in self.pending_joins:
            self._add(join.member_id, join, token, out, now_ms)
            return
        error = self.check_member(join.member_id, join.instance_id)
        if error is not None:
            out.error = error
            return
        member = self.members[join.member_id]
        protocols = tuple(join.protocols)
        is_same = member.protocols == protocols
        if self.state is State.COMPLETING and is_same:
            # It did not see the answer to its JoinGroup, and no new generation is needed to repeat it.
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
        self.pending_joins.pop(member_id, None)
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=tuple(join.protocols),
            join_token=token,
            is_new=True,
            last_heartbeat_ms=now_ms,
        )
        if not self.members:
            self.protocol_type_or_none = join.protocol_type
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        if self.state is State.PREPARING and self._was_empty:
            self._new_member_came = True
        out.set_timer(
            ("session", self.group_id, member_id),
            self.settings.new_member_timeout_ms,
            MemberTimedOut(self.group_id, member_id),
        )
        self._rebalance(f"{member_id} joins: {join.reason or 'not provided'}", out, now_ms)

    def _update(self, member: Member, join: Join, token: Token, out: Effects) -> None:
        if member.join_token is not None:
            # The client has given up on the request before; whoever still waits for it is told to ask again.
            out.reply(member.join_token, RebalanceInProgress(self.group_id))
        member.join_token = token
        member.protocols = tuple(join.protocols)
        member.session_timeout_ms = join.session_timeout_ms
        member.alive = None
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host

    def _replace_static(self, old: Member, join: Join, token: Token, out: Effects, now_ms: int) -> None:
        """A static member is back under a new id: its place in the group is kept, the old id is fenced."""
        assert join.instance_id is not None
        self._answer_waiting(old, FencedInstance(join.instance_id, old.member_id), out)
        out.cancel_timer(("session", self.group_id, old.member_id))
        was_leader = self.leader == old.member_id
        new_id = join.new_member_id
        member = Member(
            member_id=new_id,
            instance_id=old.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=tuple(join.protocols),
            assignment=old.assignment,
            last_heartbeat_ms=now_ms,
            last_commit_ms=old.last_commit_ms,
        )
        self.members = {
            member.member_id if key == old.member_id else key: member if key == old.member_id else each
            for key, each in self.members.items()
        }
        self.static_members[join.instance_id] = new_id
        if old.member_id in self.pending_syncs:
            del self.pending_syncs[old.member_id]
            self.pending_syncs[new_id] = None
        former_leader = self.leader
        if was_leader:
            self.leader = new_id
        if self.state is State.STABLE and self._select_protocol() == self.protocol:
            self._touch(member, out, now_ms)
            out.records.append(self.record(now_ms))
            skip = join.supports_skipped_assignment and was_leader
            out.response = Joined(
                generation=self.generation,
                protocol_type=self.protocol_type_or_none,
                protocol=self.protocol,
                # A client that cannot be told to skip the assignment must not think that it leads.
                leader=new_id if skip or not was_leader else former_leader or "",
                member_id=new_id,
                members=self._members_for_leader() if skip else (),
                skip_assignment=skip,
            )
            if not was_leader:
                out.response = self._joined(member)
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
        """All members must join again; they learn of it with their next heartbeat."""
        self.rebalance_reason = reason
        if self.state is State.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                self._answer_sync(member, RebalanceInProgress(self.group_id), out, now_ms)
        out.cancel_timer(("sync", self.group_id))
        self.pending_syncs.clear()
        self._was_empty = self.state is State.EMPTY
        self._enter(State.PREPARING, now_ms)
        timeout_ms = self.rebalance_timeout_ms
        if self._was_empty:
            self._new_member_came = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, timeout_ms)
            command = InitialDelayPassed(self.group_id, delay_ms, max(timeout_ms - delay_ms, 0))
            out.set_timer(("join", self.group_id), delay_ms, command)
            return
        out.set_timer(("join", self.group_id), timeout_ms, JoinTimedOut(self.group_id))
        self._maybe_complete_join(out, now_ms)

    def initial_delay_passed(self, passed: InitialDelayPassed, out: Effects, now_ms: int) -> None:
        if self.state is not State.PREPARING:
            return
        if self._new_member_came and passed.remaining_ms > 0:
            self._new_member_came = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, passed.remaining_ms)
            command = InitialDelayPassed(self.group_id, delay_ms, max(passed.remaining_ms - delay_ms, 0))
            out.set_timer(("join", self.group_id), delay_ms, command)
            return
        self._complete_join(out, now_ms)

    def join_timed_out(self, out: Effects, now_ms: int) -> None:
        if self.state is State.PREPARING:
            self._complete_join(out, now_ms)

    def _maybe_complete_join(self, out: Effects, now_ms: int) -> None:
        if (
            self.state is State.PREPARING
            and not self._was_empty
            and not self.pending_joins
            and all(member.join_token is not None for member in self.members.values())
        ):
            self._complete_join(out, now_ms)

    def _complete_join(self, out: Effects, now_ms: int) -> None:
        """Begin the next generation with those who have joined, and static members who may come back."""
        out.cancel_timer(("join", self.group_id))
        for member in list(self.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._forget(member.member_id, out)
        if self.members and not self._elect_leader():
            # Only static members are left, and none of them is here: the generation waits for one.
            out.set_timer(("join", self.group_id), self.rebalance_timeout_ms, JoinTimedOut(self.group_id))
            return
        self.generation += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol = None
            self.leader = None
            self._topics = self._compute_topics()
            self._enter(State.EMPTY, now_ms)
            out.records.append(self.record(now_ms))
            return
        self.protocol = self._select_protocol()
        self._topics = self._compute_topics()
        self._enter(State.COMPLETING, now_ms)
        for member in self.members.values():
            token, member.join_token = member.join_token, None
            member.is_new = False
            self.pending_syncs[member.member_id] = None
            self._touch(member, out, now_ms)
            if token is not None:
                out.reply(token, self._joined(member))
        out.set_timer(
            ("sync", self.group_id),
            self.rebalance_timeout_ms,
            SyncTimedOut(self.group_id, self.generation),
        )

    def _elect_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first who has; False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    # Synchronising.

    def sync(self, sync: Sync, token: Token, out: Effects, now_ms: int) -> None:
        """A SyncGroup: answered when the leader has sent the assignment."""
        error = self.check_generation(sync.member_id, sync.instance_id, sync.generation)
        if error is None and (
            (sync.protocol_type is not None and sync.protocol_type != self.protocol_type_or_none)
            or (sync.protocol is not None and sync.protocol != self.protocol)
        ):
            error = InconsistentProtocol(
                self.group_id, f"it has settled on {self.protocol_type_or_none} with {self.protocol}"
            )
        if error is None and self.state is State.PREPARING:
            error = RebalanceInProgress(self.group_id)
        if error is not None:
            out.error = error
            return
        member = self.members[sync.member_id]
        self.pending_syncs.pop(member.member_id, None)
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
        if not self.pending_syncs:
            out.cancel_timer(("sync", self.group_id))
        for member in self.members.values():
            self._answer_sync(member, self._synced(member), out, now_ms)

    def sync_timed_out(self, timed_out: SyncTimedOut, out: Effects, now_ms: int) -> None:
        """Members that joined a generation and never asked for their part of it are dropped."""
        if timed_out.generation != self.generation or not self.pending_syncs:
            return
        if self.state in (State.COMPLETING, State.STABLE):
            for member_id in list(self.pending_syncs):
                self._forget(member_id, out)
            self.prepare_rebalance("members did not ask for their assignment in time", out, now_ms)

    # Staying and leaving.

    def heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> MillraceError | None:
        """A sign of life; the error is the answer, with REBALANCE_IN_PROGRESS as the call to join again.

        The shell restarts the session's timer for None and RebalanceInProgress alike."""
        error = self.check_generation(heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not None:
            return error
        self.members[heartbeat.member_id].last_heartbeat_ms = now_ms
        return RebalanceInProgress(self.group_id) if self.state is State.PREPARING else None

    def session_timer(self, member_id: str) -> SetTimer:
        return self._session_timer(self.members[member_id])

    def alive(self, member: Member) -> Decision[object]:
        """A member has shown itself, and there is nothing to tell it."""
        ready = member.alive
        if ready is None:
            ready = member.alive = Decision(timers=(self._session_timer(member),), response=DONE)
        return ready

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        member = self.members.get(member_id)
        if member is None:
            return ()
        member.last_commit_ms = now_ms
        return self.alive(member).timers

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
            known_as = self.static_members.get(leaving.instance_id)
            if known_as is None:
                return UnknownMember(self.group_id, leaving.instance_id)
            member_id = known_as
        elif member_id in self.pending_joins:
            self._forget(member_id, out)
            return None
        else:
            error = self.check_member(member_id, leaving.instance_id)
            if error is not None:
                return error
        self._forget(member_id, out)
        return None

    def member_timed_out(self, member_id: str, out: Effects, now_ms: int) -> None:
        if member_id in self.pending_joins:
            self._forget(member_id, out)
            self._maybe_complete_join(out, now_ms)
            return
        member = self.members.get(member_id)
        # Who waits for an answer sends no heartbeats; only a join that was never answered is too old by now.
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
        out.cancel_timer(("session", self.group_id, member_id))
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._answer_waiting(member, UnknownMember(self.group_id, member_id), out)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

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
