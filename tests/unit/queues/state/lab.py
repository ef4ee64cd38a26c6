"""A machine of share state with its shell played by hand: decisions are applied and stored here."""

from __future__ import annotations

from typing import Final

from millrace.core.ids import TopicId
from millrace.queues.share_partition.model import Delta, RecordState, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import (
    InitializeState,
    ReadState,
    StateSettings,
    WriteState,
)
from millrace.queues.state.machine import ShareStateMachine
from millrace.queues.state.records import ShareStateCodec

ORDERS: Final = TopicId(bytes(range(16)))
BILLS: Final = TopicId(bytes(range(16, 32)))
KEY: Final = ShareKey("workers", ORDERS, 0)
OTHER: Final = ShareKey("workers", BILLS, 1)
CODEC: Final = ShareStateCodec()


def run(
    first: int,
    last: int,
    state: RecordState = RecordState.ACKNOWLEDGED,
    count: int = 1,
    not_before_ms: int = 0,
) -> StateBatch:
    return StateBatch(first, last, state, count, not_before_ms)


class Lab:
    def __init__(self, settings: StateSettings | None = None) -> None:
        self.settings = settings or StateSettings()
        self.topics: dict[bytes, int] = {ORDERS: 4, BILLS: 4}
        self.machine = self.new_machine()
        self.stored: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1_000

    def new_machine(self) -> ShareStateMachine:
        return ShareStateMachine(self.settings, lambda key: key.partition < self.topics.get(key.topic_id, 0))

    def give(self, command: object) -> object:
        """The response, or the error as a value; everything that was decided is done."""
        before = repr(vars(self.machine))
        decision = self.machine.decide(command, self.now_ms, 0)
        assert repr(vars(self.machine)) == before, f"{command} was decided and has changed the machine"
        for record in decision.records:
            self.stored.append(CODEC.encode(record))
            self.machine.apply(record)
        return decision.error if decision.error is not None else decision.response

    def initialize(self, key: ShareKey = KEY, *, state_epoch: int = 1, start_offset: int = -1) -> object:
        return self.give(InitializeState(key, state_epoch, start_offset))

    def write(
        self,
        *batches: StateBatch,
        key: ShareKey = KEY,
        start_offset: int = -1,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        count: int = 0,
    ) -> object:
        return self.give(WriteState(key, state_epoch, leader_epoch, Delta(start_offset, count, batches)))

    def read(self, key: ShareKey = KEY, leader_epoch: int = 0) -> StoredState:
        stored = self.give(ReadState(key, leader_epoch))
        assert isinstance(stored, StoredState), stored
        return stored

    def replayed(self, first: int = 0) -> ShareStateMachine:
        """A machine that has seen only what is stored, from a record on."""
        machine = self.new_machine()
        for key, value in self.stored[first:]:
            record = CODEC.decode(key, value)
            assert record is not None
            machine.apply(record)
        return machine
