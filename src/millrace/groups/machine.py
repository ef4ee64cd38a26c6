"""All groups and offsets of one partition of `__consumer_offsets`. It gives each command to its rules.

Classic groups and offsets are this module's own. Every other kind of group is a rule set, a
`kinds.GroupRules`, found by the type of a command, of a record's key, or of the group.

A group is classic or of the consumer protocol (KIP-848). It changes from one to the other by records alone: a
tombstone of the one and records of the other, applied in order. Behind them a classic group may also bring,
unstored, who is joining it at the moment. Only `apply` changes the offsets, consumer groups except for their
soft state, the `stored` generation of classic groups, and which stored groups there are. All else is soft
state: a classic group between two generations, a group that nobody has stored yet, when members were last
heard of, answers kept ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from millrace.coordinator.decision import (
    NOTHING,
    Applied,
    Decision,
    Record,
    SetTimer,
    Timer,
    Token,
    TransactionalRecord,
    TransactionEnded,
    Unstored,
)
from millrace.core.errors import MillraceError
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.commands import (
    DONE,
    UNSTABLE,
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    DeleteGroup,
    DeleteOffsets,
    EndOffsetTransaction,
    ExpireOffsets,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    InitialDelayPassed,
    Join,
    JoinTimedOut,
    Leave,
    Left,
    MemberTimedOut,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Sync,
    SyncTimedOut,
    TopicsDeleted,
)
from millrace.groups.effects import Effects
from millrace.groups.errors import (
    FencedMemberEpoch,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    StaleMemberEpoch,
    SubscribedToTopic,
    UnknownMember,
)
from millrace.groups.kinds import ConsumerRules, Group, GroupRules
from millrace.groups.offsets.committed import Offsets, commit
from millrace.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
)

_EXPIRY: Final = "offset expiry"


class CommittingClient(Protocol):
    """Who commits offsets, as its request says."""

    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def generation(self) -> int: ...


class GroupMachine:
    """The stored state of one internal partition, with the soft state of its groups."""

    has_soft_state: Final = True

    def __init__(
        self,
        settings: GroupSettings,
        consumer_rules: Callable[[GroupMachine], ConsumerRules] | None = None,
        further_rules: Sequence[Callable[[GroupMachine], GroupRules]] = (),
    ) -> None:
        """`consumer_rules` also serve classic members; `further_rules` are those of kinds that keep apart."""
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.consumer_rules = None if consumer_rules is None else consumer_rules(self)
        self._is_live = False
        self._rules_by_group: dict[type, GroupRules] = {}
        self._rules_by_command: dict[type, GroupRules] = {}
        self._rules_by_key: dict[type, GroupRules] = {}
        own = () if self.consumer_rules is None else (self.consumer_rules,)
        for rules in (*own, *(new_rules(self) for new_rules in further_rules)):
            self._rules_by_group[rules.group_type] = rules
            self._rules_by_command.update(dict.fromkeys(rules.command_types, rules))
            self._rules_by_key.update(dict.fromkeys(rules.key_types, rules))
        self._classic: dict[type, Callable[[Any, int, Token], Decision[object]]] = {
            Heartbeat: self._heartbeat,
            Join: self._join,
            Sync: self._sync,
            Leave: self._leave,
            MemberTimedOut: self._member_timed_out,
            JoinTimedOut: self._join_timed_out,
            InitialDelayPassed: self._initial_delay_passed,
            SyncTimedOut: self._sync_timed_out,
        }
        self._shared: dict[type, Callable[[Any, int], Decision[object]]] = {
            CommitOffsets: self._commit_offsets,
            CommitInTransaction: self._commit_in_transaction,
            EndOffsetTransaction: self._end_offset_transaction,
            FetchOffsets: self._fetch_offsets,
            DeleteOffsets: self._delete_offsets,
            DeleteGroup: self._delete_group,
            ExpireOffsets: self._expire_offsets,
            TopicsDeleted: self._topics_deleted,
        }

    # The shell's side.

    def decide(self, command: Any, now_ms: int, token: Token) -> Decision[object]:
        kind = type(command)
        classic = self._classic.get(kind)
        if classic is not None:
            group = self.groups.get(command.group_id)
            rules = None if group is None else self._rules_by_group.get(type(group))
            if rules is None or group is None:
                return classic(command, now_ms, token)
            if kind is Join and group.is_empty and rules.may_become_classic:
                # No member of the other protocol is left, so the group begins anew.
                return self._join_instead_of(group, command, now_ms, token)
            if self.consumer_rules is None or rules is not self.consumer_rules:
                # A group of a kind that keeps apart is none where classic members look for theirs.
                return classic(command, now_ms, token)
            return self.consumer_rules.decide(command, now_ms, token)
        shared = self._shared.get(kind)
        if shared is not None:
            return shared(command, now_ms)
        return self._rules_by_command[kind].decide(command, now_ms, token)

    def apply(self, record: Applied) -> None:
        if type(record) is not Record:
            self._apply_other(record)
            return
        key, value = record
        if type(key) is OffsetCommitKey:
            assert value is None or type(value) is CommittedOffset, value
            self.apply_offset(key, value)
            return
        match key, value:
            case GroupMetadataKey(), (GroupMetadataValue() | None):
                self._apply_group(key.group, value)
            case _:
                rules = self._rules_by_key.get(type(key))
                if rules is not None:
                    rules.apply(record)

    def apply_offset(self, key: OffsetCommitKey, committed: CommittedOffset | None) -> None:
        """As `apply`, for the record of an offset."""
        self.offsets.apply(key, committed)
        if committed is not None and key.group not in self.groups:
            self._add_offsets_only(key.group)

    def _add_offsets_only(self, group_id: str) -> None:
        """Add a group that only has offsets, for a consumer that commits without belonging to a group."""
        self.groups[group_id] = ClassicGroup(group_id, self.settings)

    def _apply_other(self, record: Applied) -> None:
        match record:
            case TransactionalRecord(
                producer_id, Record(OffsetCommitKey() as key, CommittedOffset() as committed)
            ):
                self.offsets.apply_pending(producer_id, key, committed)
            case TransactionEnded(producer_id, is_commit):
                for group_id in self.offsets.end_transaction(producer_id, is_commit=is_commit):
                    if group_id not in self.groups:
                        self._add_offsets_only(group_id)
            case Unstored(ClassicGroup() as group):
                # This is the group of the record before, with the requests that it still has to answer.
                present = self.classic_group(group.group_id)
                group.stored = None if present is None else present.stored
                self.groups[group.group_id] = group
            case _:
                # Only offsets are ever committed in transactions.
                pass

    def resume(self, now_ms: int) -> Decision[object]:
        self._is_live = True
        timers: list[Timer] = [self._expiry_timer()]
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                timers += group.resume()
            else:
                timers += self._rules_by_group[type(group)].resume(group, now_ms)
        return Decision(timers=tuple(timers))

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _apply_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.classic_group(group_id)
        if value is None:
            if group is not None:
                del self.groups[group_id]
                if group_id in self.offsets.by_group:
                    self.groups[group_id] = ClassicGroup(group_id, self.settings)
        elif group is not None and self._is_live:
            # The group is already there, and has decided on this record itself.
            group.stored = value
        else:
            self.groups[group_id] = ClassicGroup.restored(group_id, value, self.settings)

    # Members of classic groups.

    def _heartbeat(self, command: Heartbeat, now_ms: int, _token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return Decision(error=UnknownMember(command.group_id, command.member_id))
        error = group.heartbeat(command, now_ms)
        if error is None:
            return group.alive(group.roster.members[command.member_id])
        if isinstance(error, RebalanceInProgress):
            return Decision(timers=(group.session_timer(command.member_id),), error=error)
        return Decision(error=error)

    def _join(self, command: Join, now_ms: int, token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            if command.group_id in self.groups:
                return Decision(error=InconsistentProtocol(command.group_id, "it is no classic group"))
            if command.member_id:
                return Decision(error=UnknownMember(command.group_id, command.member_id))
            group = ClassicGroup(command.group_id, self.settings)
            if not group.supports(command.protocol_type, command.protocols):
                return Decision(
                    error=InconsistentProtocol(command.group_id, "a member must name its protocols")
                )
            self.groups[command.group_id] = group
        out = Effects()
        group.join(command, token, out, now_ms)
        return out.decision()

    def _join_instead_of(self, old: Group, command: Join, now_ms: int, token: Token) -> Decision[object]:
        if command.member_id:
            return Decision(error=UnknownMember(command.group_id, command.member_id))
        group = ClassicGroup(command.group_id, self.settings)
        if not group.supports(command.protocol_type, command.protocols):
            return Decision(error=InconsistentProtocol(command.group_id, "a member must name its protocols"))
        out = Effects()
        out.records += old.tombstones()
        out.records.append(group.record(now_ms))
        group.join(command, token, out, now_ms)
        out.unstored.append(Unstored(group))
        return out.decision()

    def _sync(self, command: Sync, now_ms: int, token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return Decision(error=UnknownMember(command.group_id, command.member_id))
        out = Effects()
        group.sync(command, token, out, now_ms)
        return out.decision()

    def _leave(self, command: Leave, now_ms: int, _token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return Decision(
                response=Left(
                    [(each, UnknownMember(command.group_id, each.member_id)) for each in command.members]
                )
            )
        out = Effects()
        out.response = Left(group.leave(command.members, out, now_ms))
        return out.decision()

    def _member_timed_out(self, command: MemberTimedOut, now_ms: int, _token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return NOTHING
        out = Effects()
        group.member_timed_out(command.member_id, out, now_ms)
        return out.decision()

    def _join_timed_out(self, command: JoinTimedOut, now_ms: int, _token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return NOTHING
        out = Effects()
        group.join_timed_out(out, now_ms)
        return out.decision()

    def _initial_delay_passed(
        self, command: InitialDelayPassed, now_ms: int, _token: Token
    ) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return NOTHING
        out = Effects()
        group.initial_delay_passed(command, out, now_ms)
        return out.decision()

    def _sync_timed_out(self, command: SyncTimedOut, now_ms: int, _token: Token) -> Decision[object]:
        group = self.classic_group(command.group_id)
        if group is None:
            return NOTHING
        out = Effects()
        group.sync_timed_out(command, out, now_ms)
        return out.decision()

    # Offsets, of groups of either protocol.

    def check_commit(self, group: Group | None, client: CommittingClient) -> MillraceError | None:
        """Why this client may not commit offsets of the group now, or None."""
        if group is not None:
            return group.check_commit(
                member_id=client.member_id, instance_id=client.instance_id, generation=client.generation
            )
        return GroupNotFound(client.group_id) if client.generation >= 0 else None

    def _commit_offsets(self, command: CommitOffsets, now_ms: int) -> Decision[object]:
        group = self.groups.get(command.group_id)
        timers: tuple[Timer, ...] = ()
        if group is not None:
            error = group.check_commit(
                member_id=command.member_id, instance_id=command.instance_id, generation=command.generation
            )
            if error is not None:
                return self._commit_some(group, command, error, now_ms)
            if command.generation >= 0:
                timers = group.committed(command.member_id, now_ms)
        elif command.generation >= 0:
            if command.knows_epochs:
                return Decision(error=GroupNotFound(command.group_id))
            return Decision(error=IllegalGeneration(command.group_id, command.generation, current=0))
        records, errors = commit(command, now_ms=now_ms, metadata_max=self.settings.offset_metadata_max)
        return Decision(records=tuple(records), timers=timers, response=OffsetsCommitted(errors))

    def _commit_some(
        self, group: Group, command: CommitOffsets, error: MillraceError, now_ms: int
    ) -> Decision[object]:
        """Store those offsets of a commit with an old epoch that its group lets pass all the same."""
        refusals = self._refusals(group, command)
        if refusals is None or None not in refusals:
            return Decision(error=error)
        allowed = [each for each, refusal in zip(command.offsets, refusals, strict=True) if refusal is None]
        records, found = commit(
            replace(command, offsets=allowed),
            now_ms=now_ms,
            metadata_max=self.settings.offset_metadata_max,
        )
        outcomes = iter(found)
        errors = [next(outcomes) if refusal is None else refusal for refusal in refusals]
        return Decision(records=tuple(records), response=OffsetsCommitted(errors))

    def _refusals(self, group: Group, command: CommitOffsets) -> list[MillraceError | None] | None:
        rules = self._rules_by_group.get(type(group))
        return None if rules is None else rules.refusals(group, command)

    def _commit_in_transaction(self, command: CommitInTransaction, now_ms: int) -> Decision[object]:
        commit_ = command.commit
        error = self._check_transactional_commit(commit_)
        if error is not None:
            return Decision(error=error)
        records, errors = commit(commit_, now_ms=now_ms, metadata_max=self.settings.offset_metadata_max)
        return Decision(records=tuple(records), producer=command.producer, response=OffsetsCommitted(errors))

    def _check_transactional_commit(self, command: CommitOffsets) -> MillraceError | None:
        """Why a transaction may not commit these offsets, or None. Older producers do not say for which
        member they commit; and they may commit while a group waits for its assignment."""
        if command.generation < 0 and not command.member_id and command.instance_id is None:
            return None
        group = self.groups.get(command.group_id)
        if group is None:
            if command.generation < 0:
                return None
            return IllegalGeneration(command.group_id, command.generation, current=0)
        error = group.check_commit(
            member_id=command.member_id, instance_id=command.instance_id, generation=command.generation
        )
        if isinstance(error, RebalanceInProgress):
            return None
        if isinstance(error, StaleMemberEpoch | FencedMemberEpoch):
            refusals = self._refusals(group, command)
            if refusals is not None and not any(refusals):
                # The member had all of these partitions already in the epoch that it still knows.
                return None
            # TxnOffsetCommit knows no other answer to a wrong epoch.
            return IllegalGeneration(command.group_id, command.generation, current=-1)
        return error

    def _end_offset_transaction(self, command: EndOffsetTransaction, now_ms: int) -> Decision[object]:
        return Decision(marker=command.marker, response=DONE)

    def _fetch_offsets(self, command: FetchOffsets, now_ms: int) -> Decision[object]:
        group = self.groups.get(command.group_id)
        if group is not None:
            error = group.check_fetch(member_id=command.member_id, member_epoch=command.member_epoch)
            if error is not None:
                return Decision(error=error)
        if command.require_stable and self.offsets.has_pending(command.group_id):
            return Decision(response=self._fetch_stable(command))
        if command.partitions is None:
            return Decision(response=OffsetsFetched(list(self.offsets.of_group(command.group_id))))
        topics = self.offsets.by_group.get(command.group_id, {})
        return Decision(
            response=OffsetsFetched(
                [
                    (topic, partition, topics[topic].get(partition) if topic in topics else None)
                    for topic, partition in command.partitions
                ]
            )
        )

    def _fetch_stable(self, command: FetchOffsets) -> OffsetsFetched:
        """The offsets for a consumer that waits for open transactions rather than read again what they
        commit."""
        offsets = self.offsets
        group_id = command.group_id
        wanted = (
            command.partitions
            if command.partitions is not None
            else [(topic, partition) for topic, partition, _ in offsets.of_group(group_id)]
        )
        return OffsetsFetched(
            [
                (
                    topic,
                    partition,
                    UNSTABLE
                    if offsets.is_pending(group_id, topic, partition)
                    else offsets.find(group_id, topic, partition),
                )
                for topic, partition in wanted
            ]
        )

    def _delete_offsets(self, command: DeleteOffsets, now_ms: int) -> Decision[object]:
        group = self.groups.get(command.group_id)
        if group is None:
            return Decision(error=GroupNotFound(command.group_id))
        error = group.check_offset_delete()
        if error is not None:
            return Decision(error=error)
        subscribed = {topic: group.is_subscribed(topic) for topic, _ in command.partitions}
        return Decision(
            records=tuple(
                self.offsets.delete(group, [each for each in command.partitions if not subscribed[each[0]]])
            ),
            response=OffsetsDeleted(
                [
                    SubscribedToTopic(command.group_id, topic) if subscribed[topic] else None
                    for topic, _ in command.partitions
                ]
            ),
        )

    def _delete_group(self, command: DeleteGroup, now_ms: int) -> Decision[object]:
        group = self.groups.get(command.group_id)
        if group is None:
            return Decision(error=GroupNotFound(command.group_id))
        if not group.is_empty:
            return Decision(error=GroupNotEmpty(command.group_id))
        records = (*self.offsets.tombstones(command.group_id), *group.tombstones())
        return Decision(records=records, response=DONE)

    def _expire_offsets(self, command: ExpireOffsets, now_ms: int) -> Decision[object]:
        records: list[Record] = []
        retention_ms = self.settings.offsets_retention_ms
        for group_id, group in self.groups.items():
            expired = self.offsets.expired(group, now_ms=now_ms, retention_ms=retention_ms)
            records += expired
            remaining = sum(len(each) for each in self.offsets.by_group.get(group_id, {}).values())
            rules = self._rules_by_group.get(type(group))
            if rules is not None and not rules.groups_expire:
                continue
            if group.is_empty and len(expired) == remaining and not self.offsets.has_pending(group_id):
                records += group.tombstones()
        return Decision(
            records=tuple(records), timers=(self._expiry_timer(),), response=DONE, is_atomic=False
        )

    def _topics_deleted(self, command: TopicsDeleted, now_ms: int) -> Decision[object]:
        records = [*self.offsets.tombstones_of_topics(command.topics)]
        for rules in self._rules_by_group.values():
            records += rules.topics_deleted(command.topic_ids)
        return Decision(records=tuple(records), response=DONE, is_atomic=False)

    def _expiry_timer(self) -> SetTimer:
        return SetTimer(_EXPIRY, self.settings.offsets_retention_check_ms, ExpireOffsets())
