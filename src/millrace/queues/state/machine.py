"""All share partitions of one partition of `__share_group_state`: what each command leads to. No I/O.

What is stored of a share partition is a snapshot and the updates behind it. Every so many updates a snapshot
takes their place. The topic is not compacted: `pruning.py` deletes what lies before the oldest snapshot that
anybody needs, and has those written anew that hold it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.coordinator.decision import NOTHING, Applied, Decision, Record, Token
from millrace.core.errors import MillraceError
from millrace.queues.share_partition.model import Delta, ShareKey, StateBatch, StoredState
from millrace.queues.state.batches import done_count, merge
from millrace.queues.state.commands import (
    DONE,
    NO_EPOCH,
    NO_OFFSET,
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    RewriteSnapshots,
    StateSettings,
    StateSummary,
    TopicsDeleted,
    WriteState,
)
from millrace.queues.state.errors import (
    InvalidShareState,
    LeaderEpochFenced,
    StateEpochFenced,
    StateNotInitialized,
    UnknownSharePartition,
)
from millrace.queues.state.records import UNKNOWN_COUNT, Snapshot, Update, coordinator_key

Knows = Callable[[ShareKey], bool]
"""Whether the topic of a share partition has such a partition at present."""


@dataclass(slots=True, kw_only=True)
class SharePartitionState:
    """One share partition, as the records have it up to now."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: list[StateBatch] = field(default_factory=list)
    updates_count: int = 0
    """How many updates lie behind the newest snapshot."""
    snapshot_number: int = field(default=0, compare=False)
    """How many snapshots this partition of the topic had with the newest one of this share partition: says
    which is older, and means nothing after a restart."""


class ShareStateMachine:
    """The state of one internal partition. `apply` changes all of it, and `decide` nothing."""

    has_soft_state: Final = False

    def __init__(self, settings: StateSettings, knows: Knows) -> None:
        self.settings = settings
        self._knows = knows
        self.states: dict[ShareKey, SharePartitionState] = {}
        """Those with the oldest snapshots come first."""
        self.snapshots_count = 0
        """How many snapshots were applied since this partition was loaded."""
        self._rules: dict[type, Callable[[Any, int], Decision[object]]] = {
            InitializeState: self._initialize,
            ReadState: self._read,
            WriteState: self._write,
            DeleteState: self._delete,
            ReadSummary: self._summary,
            TopicsDeleted: self._topics_deleted,
            RewriteSnapshots: self._rewrite,
        }

    # The shell's side.

    def decide(self, command: object, now_ms: int, _token: Token) -> Decision[object]:
        return self._rules[type(command)](command, now_ms)

    def apply(self, record: Applied) -> None:
        match record:
            case Record(ShareKey() as key, Update() as update):
                self.apply_update(key, update)
            case Record(ShareKey() as key, Snapshot() as snapshot):
                self._apply_snapshot(key, snapshot)
            case Record(ShareKey() as key, None):
                self.states.pop(key, None)
            case _:
                # Nobody writes to this topic in a transaction.
                pass

    def resume(self, _now_ms: int) -> Decision[object]:
        return NOTHING

    def apply_update(self, key: ShareKey, update: Update) -> None:
        """Apply an update that was let pass; the quick way of writing brings it without a decision."""
        state = self.states.get(key)
        if state is None:
            # Its snapshot was deleted, because a newer one or a tombstone follows further on in the log.
            state = self.states[key] = SharePartitionState(
                snapshot_epoch=update.snapshot_epoch,
                state_epoch=0,
                leader_epoch=update.leader_epoch,
                start_offset=NO_OFFSET,
                delivery_complete_count=UNKNOWN_COUNT,
                create_ms=0,
                write_ms=0,
                snapshot_number=self.snapshots_count,
            )
        if update.leader_epoch > state.leader_epoch:
            state.leader_epoch = update.leader_epoch
        if update.start_offset != NO_OFFSET:
            state.start_offset = update.start_offset
        state.delivery_complete_count = update.delivery_complete_count
        merge(state.batches, update.batches, state.start_offset)
        state.updates_count += 1

    def _apply_snapshot(self, key: ShareKey, snapshot: Snapshot) -> None:
        before = self.states.pop(key, None)
        self.snapshots_count += 1
        state = SharePartitionState(
            snapshot_epoch=snapshot.snapshot_epoch,
            state_epoch=snapshot.state_epoch,
            leader_epoch=snapshot.leader_epoch,
            start_offset=snapshot.start_offset,
            delivery_complete_count=snapshot.delivery_complete_count,
            create_ms=snapshot.create_ms,
            write_ms=snapshot.write_ms,
            snapshot_number=self.snapshots_count,
        )
        if before is not None:
            # When state begins anew Kafka writes leader epoch 0, and still fences by the greatest one.
            state.leader_epoch = max(state.leader_epoch, before.leader_epoch)
            state.state_epoch = max(state.state_epoch, before.state_epoch)
        merge(state.batches, snapshot.batches, snapshot.start_offset)
        self.states[key] = state

    # Rules.

    def check_write(self, command: WriteState) -> SharePartitionState | MillraceError:
        """The state that a write may change, or why it may not."""
        key, state_epoch, leader_epoch, _ = command
        state = self.states.get(key)
        if state is None:
            return StateNotInitialized(coordinator_key(key), "a write")
        if leader_epoch != NO_EPOCH and state.leader_epoch > leader_epoch:
            return LeaderEpochFenced(coordinator_key(key), leader_epoch, current=state.leader_epoch)
        if state_epoch != NO_EPOCH and state.state_epoch > state_epoch:
            return StateEpochFenced(coordinator_key(key), state_epoch, current=state.state_epoch)
        return state if self._knows(key) else UnknownSharePartition(coordinator_key(key))

    def update_of(self, state: SharePartitionState, command: WriteState) -> Update | None:
        """The update that a write leads to; None if a snapshot is due."""
        if state.updates_count >= self.settings.updates_per_snapshot:
            return None
        start_offset, count, batches = command.delta
        # As in Kafka, a write does not raise the leader epoch: the leader has read before.
        return Update(state.snapshot_epoch, state.leader_epoch, _start(state, start_offset), count, batches)

    def _initialize(self, command: InitializeState, now_ms: int) -> Decision[object]:
        key, state_epoch, start_offset = command
        if key.partition < 0:
            return Decision(error=InvalidShareState(f"{key.partition} is no number of a partition"))
        state = self.states.get(key)
        if state is not None and state_epoch != NO_EPOCH and state.state_epoch > state_epoch:
            error = StateEpochFenced(coordinator_key(key), state_epoch, current=state.state_epoch)
            return Decision(error=error)
        if not self._knows(key):
            return Decision(error=UnknownSharePartition(coordinator_key(key)))
        snapshot = Snapshot(
            snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
            state_epoch=state_epoch if state is None else max(state_epoch, state.state_epoch),
            # The records that say who leads may be deleted once this one is there.
            leader_epoch=0 if state is None else state.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == NO_OFFSET else 0,
            create_ms=now_ms,
            write_ms=now_ms,
            batches=(),
        )
        return Decision(records=(Record(key, snapshot),), response=DONE)

    def _read(self, command: ReadState, now_ms: int) -> Decision[object]:
        key, leader_epoch = command
        if key.partition < 0:
            return Decision(error=InvalidShareState(f"{key.partition} is no number of a partition"))
        state = self.states.get(key)
        if state is None:
            return Decision(error=StateNotInitialized(coordinator_key(key), "a read"))
        if leader_epoch != NO_EPOCH and state.leader_epoch > leader_epoch:
            error = LeaderEpochFenced(coordinator_key(key), leader_epoch, current=state.leader_epoch)
            return Decision(error=error)
        if not self._knows(key):
            return Decision(error=UnknownSharePartition(coordinator_key(key)))
        stored = StoredState(
            state.state_epoch, state.start_offset, done_count(state.batches), tuple(state.batches)
        )
        if leader_epoch in (NO_EPOCH, state.leader_epoch):
            return Decision(response=stored)
        same = Delta(state.start_offset, state.delivery_complete_count, ())
        return Decision(
            records=(Record(key, self._record(state, same, leader_epoch, now_ms)),), response=stored
        )

    def _write(self, command: WriteState, now_ms: int) -> Decision[object]:
        if command.key.partition < 0:
            return Decision(error=InvalidShareState(f"{command.key.partition} is no number of a partition"))
        state = self.check_write(command)
        if isinstance(state, MillraceError):
            return Decision(error=state)
        value = self._record(state, command.delta, state.leader_epoch, now_ms)
        return Decision(records=(Record(command.key, value),), response=DONE)

    def _record(
        self, state: SharePartitionState, delta: Delta, leader_epoch: int, now_ms: int
    ) -> Snapshot | Update:
        start_offset, count, changed = _start(state, delta.start_offset), *delta[1:]
        if state.updates_count < self.settings.updates_per_snapshot:
            return Update(state.snapshot_epoch, leader_epoch, start_offset, count, changed)
        start_offset = state.start_offset if start_offset == NO_OFFSET else start_offset
        batches = list(state.batches)
        merge(batches, changed, start_offset)
        return Snapshot(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=count,
            create_ms=now_ms,
            write_ms=now_ms,
            batches=tuple(batches),
        )

    def _delete(self, command: DeleteState, _now_ms: int) -> Decision[object]:
        key = command.key
        if key.partition < 0:
            return Decision(error=InvalidShareState(f"{key.partition} is no number of a partition"))
        if not self._knows(key):
            return Decision(error=UnknownSharePartition(coordinator_key(key)))
        if key not in self.states:
            return Decision(response=DONE)
        return Decision(records=(Record(key, None),), response=DONE)

    def _summary(self, command: ReadSummary, _now_ms: int) -> Decision[object]:
        key = command.key
        if key.partition < 0:
            return Decision(error=InvalidShareState(f"{key.partition} is no number of a partition"))
        if not self._knows(key):
            return Decision(error=UnknownSharePartition(coordinator_key(key)))
        state = self.states.get(key)
        if state is None:
            return Decision(response=StateSummary())
        return Decision(
            response=StateSummary(
                state.state_epoch, state.leader_epoch, state.start_offset, _complete_count(state)
            )
        )

    # Upkeep.

    def _topics_deleted(self, command: TopicsDeleted, _now_ms: int) -> Decision[object]:
        gone = frozenset(command.topic_ids)
        records = tuple(Record(key, None) for key in self.states if key.topic_id in gone)
        return Decision(records=records, response=DONE, is_atomic=False)

    def has_older(self, snapshot_number: int) -> bool:
        """Whether a share partition needs a snapshot that was there when the log had so many."""
        oldest = next(iter(self.states.values()), None)
        return oldest is not None and oldest.snapshot_number <= snapshot_number

    def _rewrite(self, command: RewriteSnapshots, now_ms: int) -> Decision[object]:
        records: list[Record] = []
        for key, state in self.states.items():
            if state.snapshot_number > command.snapshot_number or len(records) >= command.records_max:
                break
            # State of a topic that was deleted while nobody had this partition loaded.
            records.append(Record(key, _anew(state, now_ms) if self._knows(key) else None))
        return Decision(records=tuple(records), response=len(records), is_atomic=False)


def _start(state: SharePartitionState, start_offset: int) -> int:
    """The start that a write leaves. It never goes back by a write: one that was on its way for long may
    arrive behind a later one, and the runs between the two are forgotten already."""
    return start_offset if start_offset == NO_OFFSET else max(start_offset, state.start_offset)


def _anew(state: SharePartitionState, now_ms: int) -> Snapshot:
    return Snapshot(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_ms=state.create_ms,
        write_ms=now_ms,
        batches=tuple(state.batches),
    )


def _complete_count(state: SharePartitionState) -> int:
    """How many records from the start on are done. A leader with several writes on their way counts from the
    start of the one before, so that what it says need not fit."""
    if state.delivery_complete_count == UNKNOWN_COUNT:
        return UNKNOWN_COUNT
    return done_count(state.batches)
