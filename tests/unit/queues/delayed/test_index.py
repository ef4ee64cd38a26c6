"""The index hands out what is pending by due time, also after a crash, and never believes what is damaged."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from millrace.queues.delayed import index as index_module
from millrace.queues.delayed.codec import Cancelled, Entry, MessageId, Settled
from millrace.queues.delayed.index import DAY_MS, HOUR_MS, MINUTE_MS, DelayIndex, IndexDamaged, Place
from millrace.sim.volume import SimVolume
from tests.unit.queues.delayed.messages import TOPIC_ID, record, stored

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/__delayed_messages-0"


@pytest.fixture
def volume() -> SimVolume:
    volume = SimVolume(random.Random(1))
    volume.make_directory(DIRECTORY)
    return volume


def new_index(volume: SimVolume) -> DelayIndex:
    index = DelayIndex(volume, DIRECTORY)
    index.begin_again(0)
    return index


def store(index: DelayIndex, due_ms: Iterable[int]) -> list[Entry]:
    state = index.state
    for due in due_ms:
        state.apply(state.next_offset, stored(record(state.next_offset, due)), index.is_recent)
        state.next_offset += 1
    return index.take_in(NOW_MS, Place(state.next_offset - 1, 1))


def settle(index: DelayIndex, entries: Iterable[Entry]) -> None:
    state = index.state
    state.apply(state.next_offset, Settled(tuple(entries)), index.is_recent)
    state.next_offset += 1
    index.take_in(NOW_MS, Place(state.next_offset - 1, 1))


def load_all(index: DelayIndex) -> list[Entry]:
    entries: list[Entry] = []
    while (slot := index.next_slot()) is not None:
        entries += index.load(slot.name)
    return entries


def test_entries_come_back_minute_by_minute(volume: SimVolume) -> None:
    index = new_index(volume)
    added = store(index, [NOW_MS + 3 * MINUTE_MS, NOW_MS, NOW_MS + 1, NOW_MS - HOUR_MS])
    assert load_all(index) == [added[3], added[1], added[2], added[0]]
    assert load_all(index) == []


def test_after_a_restart_only_what_is_behind_the_checkpoint_has_to_be_read(volume: SimVolume) -> None:
    index = new_index(volume)
    added = store(index, [NOW_MS, NOW_MS + 1, NOW_MS + MINUTE_MS])
    settle(index, added[:1])
    index.save()
    store(index, [NOW_MS + 2])
    again = DelayIndex(volume, DIRECTORY)
    again.open()
    assert again.state.next_offset == 4
    assert again.state.pending_count == 2
    assert store(again, [NOW_MS + 2]) == [(NOW_MS + 2, 4)]
    assert load_all(again) == [added[1], (NOW_MS + 2, 4), added[2]]


def test_a_minute_that_is_done_is_dropped_whole(volume: SimVolume) -> None:
    index = new_index(volume)
    added = store(index, [NOW_MS, NOW_MS + 1, NOW_MS + MINUTE_MS])
    index.save()
    settle(index, added[:2])
    index.save()
    names = [entry.name for entry in volume.list_directory(index.path)]
    assert names == ["checkpoint", f"m{added[2][0] // MINUTE_MS}", "r0"]
    assert load_all(index) == [added[2]]


def test_what_is_far_away_lies_in_hours_and_is_spread_when_it_comes_near(volume: SimVolume) -> None:
    index = new_index(volume)
    far = [NOW_MS + 3 * DAY_MS, NOW_MS + 3 * DAY_MS + MINUTE_MS]
    added = store(index, far)
    assert [slot.is_hour for slot in index.slots.values()] == [True]
    settle(index, added[:1])
    index.save()
    index.state.apply(index.state.next_offset, stored(record(50, far[0])), index.is_recent)
    index.state.next_offset += 1
    near = index.take_in(NOW_MS + 2 * DAY_MS + HOUR_MS, Place(3, 1))
    assert not any(slot.is_hour for slot in index.slots.values())
    index.save()
    assert sorted(load_all(index)) == sorted([*near, added[1]])
    again = DelayIndex(volume, DIRECTORY)
    again.open()
    assert sorted(load_all(again)) == sorted([*near, added[1]])


def test_an_hour_is_spread_when_somebody_asks_for_it(volume: SimVolume) -> None:
    index = new_index(volume)
    added = store(index, [NOW_MS + 3 * DAY_MS])
    assert load_all(index) == added


def test_new_entries_of_a_loaded_minute_go_to_memory_directly(volume: SimVolume) -> None:
    index = new_index(volume)
    store(index, [NOW_MS])
    load_all(index)
    added = store(index, [NOW_MS + 1, NOW_MS + 10 * MINUTE_MS])
    assert index.note_handed_out(added) == added[:1]
    assert load_all(index) == added[1:]
    index.hand_out_again()
    assert len(load_all(index)) == 3


def test_ids_that_came_lately_are_known_also_after_a_restart(volume: SimVolume) -> None:
    index = new_index(volume)
    again = stored(record(0, NOW_MS, is_repeated=True))
    store(index, [NOW_MS])
    index.save()
    reopened = DelayIndex(volume, DIRECTORY)
    reopened.open()
    reopened.state.apply(1, again, reopened.is_recent)
    assert reopened.state.repeated_count == 1


@pytest.mark.parametrize("what", ["nothing", "checkpoint", "short"])
def test_a_damaged_index_is_not_believed(volume: SimVolume, what: str) -> None:
    index = new_index(volume)
    if what != "nothing":
        store(index, [NOW_MS])
        index.save()
    if what == "checkpoint":
        volume.flip_bit(f"{index.path}/checkpoint", 9)
    if what == "short":
        name = next(iter(index.slots))
        volume.file(f"{index.path}/{name}").truncate(8)
    with pytest.raises(IndexDamaged):
        DelayIndex(volume, DIRECTORY).open()


def test_a_flipped_bit_in_a_minute_is_found_when_it_is_loaded(volume: SimVolume) -> None:
    index = new_index(volume)
    store(index, [NOW_MS])
    index.save()
    volume.flip_bit(f"{index.path}/{next(iter(index.slots))}", 9)
    again = DelayIndex(volume, DIRECTORY)
    again.open()
    with pytest.raises(IndexDamaged):
        load_all(again)


def test_files_that_no_checkpoint_names_are_removed(volume: SimVolume) -> None:
    index = new_index(volume)
    store(index, [NOW_MS])
    index.save()
    volume.file(f"{index.path}/m5", create=True).write_at(0, b"x" * 16)
    DelayIndex(volume, DIRECTORY).open()
    assert not volume.exists(f"{index.path}/m5")


def cancel(index: DelayIndex, offsets: Iterable[int]) -> None:
    state = index.state
    for offset in offsets:
        state.apply(state.next_offset, Cancelled(MessageId(TOPIC_ID, 0, offset)), index.is_recent)
        state.next_offset += 1
    index.take_in(NOW_MS, Place(state.next_offset - 1, 1))


def cancellation_files(volume: SimVolume, index: DelayIndex) -> list[str]:
    return sorted(each.name for each in volume.list_directory(index.path) if each.name[0] == "c")


def test_cancellations_are_appended_to_files_and_known_after_a_restart(
    volume: SimVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "GENERATION_MAX", 4)
    index = new_index(volume)
    added = store(index, [NOW_MS + HOUR_MS + n for n in range(9)])
    cancel(index, range(3))
    index.save()
    cancel(index, range(3, 6))
    index.save()
    cancel(index, [6])
    assert cancellation_files(volume, index) == ["c0", "c1", "checkpoint"]
    again = DelayIndex(volume, DIRECTORY)
    again.open()
    known = [again.state.is_cancelled(stored(record(offset)), offset) for offset in range(9)]
    assert known == [True] * 6 + [False] * 3
    # Nothing is left of what was stored before them.
    settle(again, added)
    again.save()
    assert cancellation_files(volume, again) == ["checkpoint"]
    assert len(again.state.cancelled) == 0


def test_damaged_cancellations_are_not_believed(volume: SimVolume) -> None:
    index = new_index(volume)
    store(index, [NOW_MS + HOUR_MS])
    cancel(index, [0])
    index.save()
    volume.file(f"{index.path}/c0").write_at(3, b"x")
    with pytest.raises(IndexDamaged, match="c0 has a wrong checksum"):
        DelayIndex(volume, DIRECTORY).open()
