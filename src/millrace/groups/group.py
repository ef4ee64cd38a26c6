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
from enum import Enum
from typing import Final

from millrace.coordinator.decision import Record, SetTimer, Timer, Token
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.commands import (
    NO_MEMBER,
    GroupSettings,
    Heartbeat,
    InitialDelayPassed,
    Join,
    Joined,
    JoinedMember,
    JoinTimedOut,
    LeavingMember,
    MemberTimedOut,
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
from millrace.groups.member import Member
from millrace.groups.subscriptions import subscribed_topics
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


class ClassicGroup:
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
    def restored(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings) -> ClassicGroup:
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

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type_or_none and any(each.name in common for each in protocols)

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

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        member = self.members.get(member_id)
        if member is None:
            return ()
        member.last_commit_ms = now_ms
        return (self._session_timer(member),)

    def tombstones(self) -> tuple[Record, ...]:
        return (Record(GroupMetadataKey(group=self.group_id), None),)

    # Answers.

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

    def _session_timer(self, member: Member) -> SetTimer:
        return SetTimer(
            ("session", self.group_id, member.member_id),
            member.session_timeout_ms,
            MemberTimedOut(self.group_id, member.member_id),
        )

    def _enter(self, state: State, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def _compute_topics(self) -> frozenset[str] | None:
        """What the members are subscribed to; None where the broker cannot know it."""
        if self.protocol_type_or_none != CONSUMER:
            return None
        if not self.members:
            return NO_TOPICS
        if self.protocol is None:
            return None
        return subscribed_topics(member.metadata_for(self.protocol) for member in self.members.values())
