"""Snapshots of producers on disk, and the state that they and the log give together."""

from __future__ import annotations

import pytest

from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.segment import Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_snapshots import (
    load_producers,
    newest_snapshot,
    remove_snapshots,
    replay,
    save_snapshot,
    snapshot_offsets,
)
from millrace.log.state.producer_state import ProducerStates
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker
from tests.unit.log.support import NOW_MS, Disk, batch_of

DIRECTORY = "/d/orders-0"


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory(DIRECTORY)
    return sim_volume


def states_of(producer_id: int) -> ProducerStates:
    states = ProducerStates()
    states.expect(producer_id, epoch=2, sequence=5, now_ms=NOW_MS)
    return states


def save(volume: SimVolume, *offsets: int) -> None:
    for offset in offsets:
        save_snapshot(volume, DIRECTORY, offset, states_of(offset))


def find(volume: SimVolume, first_offset: int, end_offset: int) -> tuple[int, list[int]]:
    offset, states = newest_snapshot(
        volume, DIRECTORY, first_offset=first_offset, end_offset=end_offset, now_ms=NOW_MS
    )
    return offset, list(states.entries)


def write(log: PartitionLog, *sequences: int, producer_id: int = 7, transactional: bool = False) -> None:
    for sequence in sequences:
        log.append_replicated(
            batch_of(
                b"v",
                producer_id=producer_id,
                sequence=sequence,
                transactional=transactional,
                base_offset=log.log_end_offset,
            )
        )


def end(log: PartitionLog, kind: int, producer_id: int = 7) -> None:
    marker = build_marker(
        ControlMarker(kind, 0),
        offset=log.log_end_offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
    )
    log.append_replicated(memoryview(bytearray(marker)))


def load(disk: Disk, high_watermark: int = 1000) -> ProducerStates:
    log = disk.log()
    return load_producers(
        disk.volume,
        log.path,
        list(log.segments),
        log_start_offset=log.log_start_offset,
        end_offset=log.log_end_offset,
        high_watermark=high_watermark,
        now_ms=NOW_MS,
    )


def test_snapshots_are_listed_by_offset_and_other_files_are_not(volume: SimVolume) -> None:
    save(volume, 30, 5)
    volume.write_bytes(f"{DIRECTORY}/notes.snapshot", b"")
    volume.write_bytes(f"{DIRECTORY}/{7:020}.log", b"")
    assert snapshot_offsets(volume, DIRECTORY) == [5, 30]


def test_those_above_an_offset_are_removed_and_that_at_the_offset_stays(volume: SimVolume) -> None:
    save(volume, 5, 10, 15, 20)
    remove_snapshots(volume, DIRECTORY, above=10)
    assert snapshot_offsets(volume, DIRECTORY) == [5, 10]


def test_all_but_the_newest_and_those_to_keep_are_removed(volume: SimVolume) -> None:
    save(volume, 5, 10, 15, 20)
    remove_snapshots(volume, DIRECTORY, keep=[10, 99])
    assert snapshot_offsets(volume, DIRECTORY) == [10, 20]


def test_the_newest_snapshot_in_the_range_is_found(volume: SimVolume) -> None:
    save(volume, 5, 10, 20)
    assert find(volume, 0, 19) == (10, [10])
    assert find(volume, 0, 20) == (20, [20])
    assert find(volume, 6, 9) == (6, [])


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(volume: SimVolume) -> None:
    save(volume, 5, 10)
    volume.flip_bit(f"{DIRECTORY}/{10:020}.snapshot", 12)
    assert find(volume, 0, 100) == (5, [5])
    volume.write_bytes(f"{DIRECTORY}/{5:020}.snapshot", b"")
    assert find(volume, 0, 100) == (0, [])


def test_snapshot_and_log_together_know_what_the_log_alone_knows(disk: Disk) -> None:
    log = disk.log()
    write(log, *range(4))
    write(log, 0, producer_id=8)
    save_snapshot(disk.volume, log.path, log.log_end_offset, log.producers)
    write(log, 4, 5)
    found = load(disk)
    assert snapshot_offsets(disk.volume, log.path) == [5]
    expected = ProducerStates()
    replay(expected, list(log.segments), 0, 7, now_ms=NOW_MS, high_watermark=1000)
    for producer_id in (7, 8):
        entry, known = found.entries[producer_id], expected.entries[producer_id]
        assert (entry.batches, entry.last_sequence) == (known.batches, known.last_sequence)
    assert [batch[0] for batch in found.entries[7].batches] == [1, 2, 3, 4, 5], "its last five"


def test_open_transactions_are_found_and_aborted_ones_are_told_with_their_segment(disk: Disk) -> None:
    log = disk.log()
    write(log, 0, transactional=True)
    end(log, ControlType.ABORT)
    write(log, 0, producer_id=8, transactional=True)
    told: list[tuple[Segment, AbortedTransaction]] = []
    states = ProducerStates()
    replay(
        states,
        list(log.segments),
        0,
        log.log_end_offset,
        now_ms=NOW_MS,
        high_watermark=1000,
        on_aborted=lambda segment, aborted: told.append((segment, aborted)),
    )
    assert told == [(log.segments[0], AbortedTransaction(7, 0, 1, 2))]
    assert (states.open_since(7), states.open_since(8), states.first_unstable_offset) == (-1, 2, 2)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_transaction_whose_marker_is_not_committed_is_kept_in_mind(disk: Disk, has_snapshot: bool) -> None:
    log = disk.log()
    write(log, 0, transactional=True)
    end(log, ControlType.COMMIT)
    if has_snapshot:
        save_snapshot(disk.volume, log.path, log.log_end_offset, log.producers)
    assert list(load(disk, high_watermark=1).ended) == [(0, 1)]
    assert list(load(disk, high_watermark=2).ended) == []
    assert load(disk, high_watermark=1).stable_before(1) == 0


def test_a_replay_begins_and_ends_where_it_is_told(disk: Disk) -> None:
    log = disk.log()
    for producer_id in range(4):
        write(log, 0, producer_id=producer_id)
    states = ProducerStates()
    replay(states, list(log.segments), 1, 3, now_ms=NOW_MS, high_watermark=1000)
    assert sorted(states.entries) == [1, 2]
