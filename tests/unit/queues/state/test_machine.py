"""Share state as rules: who may read and write it, when a snapshot is due, what a restart knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import MillraceError
from millrace.queues.share_partition.model import Delta, RecordState, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import (
    DONE,
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
from millrace.queues.state.machine import ShareStateMachine
from millrace.queues.state.records import Snapshot, Update
from tests.unit.queues.state.lab import BILLS, CODEC, KEY, ORDERS, OTHER, Lab, run

FREE = RecordState.AVAILABLE


def kinds(lab: Lab) -> list[type]:
    records = [CODEC.decode(key, value) for key, value in lab.stored]
    return [type(record.value) for record in records if record is not None]


def test_state_is_initialized_written_and_read() -> None:
    lab = Lab()
    assert lab.initialize() is DONE
    assert lab.read() == StoredState(1, -1, 0, ())
    assert lab.write(run(10, 19), start_offset=10, count=10) is DONE
    assert lab.write(run(25, 25, FREE), count=10) is DONE
    assert lab.read() == StoredState(1, 10, 10, (run(10, 19), run(25, 25, FREE)))
    assert lab.write(start_offset=20, count=0) is DONE
    assert lab.read() == StoredState(1, 20, 0, (run(25, 25, FREE),))


def test_what_was_not_initialized_is_neither_read_nor_written() -> None:
    lab = Lab()
    assert isinstance(lab.give(ReadState(KEY, 0)), StateNotInitialized)
    assert isinstance(lab.write(run(0, 1)), StateNotInitialized)
    assert lab.give(ReadSummary(KEY)) == StateSummary(0, 0, -1, -1)
    assert lab.stored == []


def test_a_leader_that_reads_fences_those_before_it() -> None:
    lab = Lab()
    lab.initialize(start_offset=5)
    lab.write(run(5, 6), leader_epoch=0)
    written = len(lab.stored)
    lab.read(leader_epoch=3)
    assert len(lab.stored) == written + 1, "the epoch is stored"
    lab.read(leader_epoch=3)
    lab.read(leader_epoch=-1)
    assert len(lab.stored) == written + 1, "and only once"
    assert isinstance(lab.write(run(7, 7), leader_epoch=2), LeaderEpochFenced)
    assert isinstance(lab.give(ReadState(KEY, 2)), LeaderEpochFenced)
    assert lab.write(run(7, 7), leader_epoch=3) is DONE
    assert lab.write(run(8, 8), leader_epoch=-1) is DONE
    assert lab.read(leader_epoch=3).batches == (run(5, 8),)


def test_state_that_begins_anew_fences_what_was_known_of_it() -> None:
    lab = Lab()
    lab.initialize(state_epoch=1)
    lab.read(leader_epoch=7)
    lab.write(run(0, 9), leader_epoch=7)
    assert lab.initialize(state_epoch=2, start_offset=100) is DONE
    assert isinstance(lab.write(run(0, 9), leader_epoch=7, state_epoch=1), StateEpochFenced)
    assert isinstance(lab.initialize(state_epoch=1), StateEpochFenced)
    assert lab.read(leader_epoch=7) == StoredState(2, 100, 0, ())
    assert isinstance(lab.give(ReadState(KEY, 6)), LeaderEpochFenced), "leaders stay fenced"
    assert lab.give(ReadSummary(KEY)) == StateSummary(2, 7, 100, 0)


@pytest.mark.parametrize("updates_per_snapshot", [0, 500])
def test_a_late_write_does_not_take_the_start_back(updates_per_snapshot: int) -> None:
    lab = Lab(StateSettings(updates_per_snapshot=updates_per_snapshot))
    lab.initialize(start_offset=0)
    lab.write(start_offset=20)
    lab.write(run(10, 12), run(25, 25), start_offset=10)
    assert lab.read() == StoredState(1, 20, 1, (run(25, 25),))
    lab.initialize(state_epoch=2, start_offset=5)
    assert lab.read().start_offset == 5, "only by hand"


def test_a_count_from_before_the_start_moved_does_not_make_the_lag_too_small() -> None:
    """Two writes are on their way: the second was counted from the start before the first."""
    lab = Lab()
    lab.initialize(start_offset=62)
    lab.write(start_offset=63, count=0)
    lab.write(run(63, 66), count=5)
    assert lab.give(ReadSummary(KEY)) == StateSummary(1, 0, 63, 4)


def test_an_offset_set_by_hand_has_nothing_done_behind_it() -> None:
    lab = Lab()
    lab.initialize(start_offset=-1)
    assert lab.give(ReadSummary(KEY)) == StateSummary(1, 0, -1, -1)
    lab.initialize(OTHER, start_offset=40)
    assert lab.give(ReadSummary(OTHER)) == StateSummary(1, 0, 40, 0)


def test_a_snapshot_takes_the_place_of_many_updates() -> None:
    lab = Lab(StateSettings(updates_per_snapshot=2))
    lab.initialize(start_offset=0)
    for offset in range(6):
        lab.write(run(offset, offset), count=offset + 1)
    assert kinds(lab) == [Snapshot, Update, Update, Snapshot, Update, Update, Snapshot]
    assert lab.read().batches == (run(0, 5),)
    assert lab.replayed(first=6).states == lab.machine.states, "nothing before the snapshot is needed"


def test_without_updates_every_write_is_a_snapshot() -> None:
    lab = Lab(StateSettings(updates_per_snapshot=0))
    lab.initialize(start_offset=0)
    lab.write(run(0, 1))
    lab.read(leader_epoch=4)
    assert kinds(lab) == [Snapshot, Snapshot, Snapshot]
    assert lab.replayed(first=2).states[KEY].leader_epoch == 4


def test_deleted_state_is_gone_and_may_be_deleted_again() -> None:
    lab = Lab()
    lab.initialize()
    assert lab.give(DeleteState(KEY)) is DONE
    assert lab.give(DeleteState(KEY)) is DONE
    assert len(lab.stored) == 2
    assert isinstance(lab.give(ReadState(KEY, 0)), StateNotInitialized)
    assert lab.initialize(state_epoch=0) is DONE, "it begins with nothing known"


def test_partitions_that_do_not_exist_have_no_state() -> None:
    lab = Lab()
    beyond = KEY._replace(partition=4)
    assert isinstance(lab.initialize(beyond), UnknownSharePartition)
    lab.initialize()
    lab.topics.clear()
    for command in (ReadState(KEY, 0), ReadSummary(KEY), DeleteState(KEY)):
        assert isinstance(lab.give(command), UnknownSharePartition)
    assert isinstance(lab.write(run(0, 0)), UnknownSharePartition)


@pytest.mark.parametrize(
    "command",
    [
        InitializeState(KEY._replace(partition=-1), 1, 0),
        ReadState(KEY._replace(partition=-1), 0),
        WriteState(KEY._replace(partition=-1), 1, 0, Delta(-1, 0, ())),
        DeleteState(KEY._replace(partition=-1)),
        ReadSummary(KEY._replace(partition=-1)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_negative_partitions_are_refused(command: object) -> None:
    assert isinstance(Lab().give(command), InvalidShareState)


def test_the_state_of_deleted_topics_goes() -> None:
    lab = Lab()
    lab.initialize(KEY)
    lab.initialize(OTHER)
    lab.give(TopicsDeleted([ORDERS]))
    assert list(lab.machine.states) == [OTHER]
    assert list(lab.replayed().states) == [OTHER]


def test_the_oldest_snapshots_are_written_anew() -> None:
    lab = Lab()
    keys = [ShareKey("workers", ORDERS, number) for number in range(4)]
    for key in keys:
        lab.initialize(key, start_offset=5)
        lab.write(run(5, 6), key=key)
    mark = lab.machine.snapshots_count
    lab.initialize(keys[0], start_offset=9)
    assert lab.machine.has_older(mark)
    before = {key: list(lab.machine.states[key].batches) for key in keys}
    first_kept = len(lab.stored) - 1
    lab.now_ms = 5_000
    assert lab.give(RewriteSnapshots(mark, 2)) == 2
    assert lab.machine.has_older(mark)
    assert lab.give(RewriteSnapshots(mark, 2)) == 1
    assert lab.give(RewriteSnapshots(mark, 2)) == 0
    assert not lab.machine.has_older(mark)
    assert {key: lab.machine.states[key].batches for key in keys} == before
    assert lab.machine.states[keys[1]].write_ms == 5_000
    assert lab.replayed(first=first_kept).states == lab.machine.states


def test_state_of_topics_that_went_unnoticed_is_not_written_anew() -> None:
    lab = Lab()
    lab.initialize(KEY)
    lab.initialize(OTHER)
    del lab.topics[BILLS]
    lab.give(RewriteSnapshots(lab.machine.snapshots_count, 10))
    assert list(lab.machine.states) == [KEY]


def test_updates_whose_snapshot_was_deleted_wait_for_the_next_one() -> None:
    lab = Lab(StateSettings(updates_per_snapshot=2))
    lab.initialize(start_offset=0)
    for offset in range(4):
        lab.write(run(offset, offset), count=offset)
    # A log that begins with the second update: its snapshot comes right behind.
    assert lab.replayed(first=2).states[KEY].batches == lab.machine.states[KEY].batches


BATCHES = st.builds(
    lambda first, length, state, count, not_before: StateBatch(
        first, first + length, state, count, not_before
    ),
    st.integers(0, 30),
    st.integers(0, 6),
    st.sampled_from([RecordState.ACKNOWLEDGED, FREE, RecordState.ARCHIVED]),
    st.integers(1, 3),
    st.sampled_from([0, 0, 7_000]),
)
ALL_KEYS = st.sampled_from([KEY, OTHER, KEY._replace(partition=3)])
EPOCHS = st.integers(-1, 3)
COMMANDS: st.SearchStrategy[Any] = st.one_of(
    st.builds(InitializeState, ALL_KEYS, EPOCHS, st.integers(-1, 20)),
    st.builds(ReadState, ALL_KEYS, EPOCHS),
    st.builds(
        WriteState,
        ALL_KEYS,
        EPOCHS,
        EPOCHS,
        st.builds(Delta, st.integers(-1, 20), st.integers(-1, 9), st.lists(BATCHES, max_size=3).map(tuple)),
    ),
    st.builds(DeleteState, ALL_KEYS),
    st.builds(ReadSummary, ALL_KEYS),
    st.just(TopicsDeleted([BILLS])),
    st.builds(RewriteSnapshots, st.integers(0, 20), st.integers(1, 3)),
)


@given(st.lists(COMMANDS, max_size=40), st.integers(0, 3))
@settings(max_examples=200)
def test_the_state_live_equals_the_state_replayed(commands: list[object], updates_per_snapshot: int) -> None:
    lab = Lab(StateSettings(updates_per_snapshot=updates_per_snapshot))
    for command in commands:
        outcome = lab.give(command)
        assert outcome is not None, command
        if isinstance(outcome, MillraceError):
            assert lab.machine.states == lab.replayed().states
    assert lab.replayed().states == lab.machine.states
    assert _by_age(lab.replayed()) == _by_age(lab.machine)


def _by_age(machine: ShareStateMachine) -> list[ShareKey]:
    numbers = [state.snapshot_number for state in machine.states.values()]
    assert numbers == sorted(numbers), "those with the oldest snapshots come first"
    return list(machine.states)


@given(st.lists(COMMANDS, max_size=20), st.integers(0, 3))
def test_the_short_way_of_a_write_leads_to_the_same_record(
    commands: list[object], updates_per_snapshot: int
) -> None:
    lab = Lab(StateSettings(updates_per_snapshot=updates_per_snapshot))
    lab.initialize(start_offset=0)
    for command in commands:
        if isinstance(command, WriteState):
            decision = lab.machine.decide(command, lab.now_ms, 0)
            state = lab.machine.check_write(command)
            if isinstance(state, MillraceError):
                assert type(decision.error) is type(state)
                assert not decision.records
            else:
                (record,) = decision.records
                update = lab.machine.update_of(state, command)
                assert record.value == update if update is not None else isinstance(record.value, Snapshot)
        lab.give(command)
