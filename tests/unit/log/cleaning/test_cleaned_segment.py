"""A `.cleaned` segment: what it holds when it is finished, and what is left when it is not."""

from __future__ import annotations

import pytest

from millrace.log.cleaning.cleaned_segment import CleanedFile, CleanedSegment, discard_cleaned
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.time_index import TimeIndex
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, batch_of

BASE = 100
STEM = f"/d/{BASE:020}"


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory("/d")
    return sim_volume


def writer(volume: SimVolume, interval_bytes: int = 200) -> CleanedSegment:
    return CleanedSegment(volume, "/d", BASE, index_interval_bytes=interval_bytes)


def entries(volume: SimVolume, kind: type[OffsetIndex | TimeIndex], suffix: str) -> list[tuple[int, int]]:
    path = f"{STEM}{suffix}.cleaned"
    size_bytes = len(volume.read_bytes(path))
    return kind(volume.file(path), base_offset=BASE, stored_size_bytes=size_bytes).entries()


def test_a_finished_segment_holds_its_batches_and_says_where_it_ends(volume: SimVolume) -> None:
    batches = [
        batch_of(b"a", b"b", base_offset=103, timestamp=NOW_MS + 9),
        batch_of(b"c", base_offset=110, timestamp=NOW_MS + 4),
    ]
    cleaned = writer(volume)
    for batch in batches:
        cleaned.append(batch)
    assert cleaned.finish([]) == CleanedFile(
        base_offset=BASE,
        size_bytes=sum(map(len, batches)),
        next_offset=111,
        max_timestamp=NOW_MS + 9,
        max_timestamp_offset=104,
    )
    assert volume.read_bytes(f"{STEM}.log.cleaned") == b"".join(batches)
    assert not volume.exists(f"{STEM}.txnindex.cleaned")


def test_the_indexes_name_batches_at_their_intervals_and_the_largest_timestamp(volume: SimVolume) -> None:
    cleaned = writer(volume, interval_bytes=100)
    size = len(batch_of(bytes(60), base_offset=BASE))
    for number in range(5):
        cleaned.append(batch_of(bytes(60), base_offset=BASE + number, timestamp=NOW_MS + number))
    cleaned.finish([])
    assert entries(volume, OffsetIndex, ".index") == [(number, number * size) for number in range(1, 5)]
    assert entries(volume, TimeIndex, ".timeindex")[-1] == (NOW_MS + 4, 4)


def test_what_is_finished_is_on_the_disk_with_its_names(volume: SimVolume) -> None:
    cleaned = writer(volume)
    batch = batch_of(b"a", base_offset=BASE)
    cleaned.append(batch)
    cleaned.finish([AbortedTransaction(7, 100, 101, 102)])
    volume.crash()
    assert volume.read_bytes(f"{STEM}.log.cleaned") == batch
    index = TxnIndex(volume.file(f"{STEM}.txnindex.cleaned"))
    assert list(index.all_aborted()) == [AbortedTransaction(7, 100, 101, 102)]


def test_a_segment_of_which_nothing_is_left_is_an_empty_file(volume: SimVolume) -> None:
    finished = writer(volume).finish([])
    assert (finished.size_bytes, finished.next_offset, finished.max_timestamp) == (0, BASE, -1)
    assert volume.read_bytes(f"{STEM}.log.cleaned") == b""


def test_a_new_writer_begins_without_what_an_earlier_attempt_left(volume: SimVolume) -> None:
    earlier = writer(volume)
    earlier.append(batch_of(b"x" * 100, base_offset=BASE))
    earlier.finish([AbortedTransaction(7, 100, 101, 102)])
    finished = writer(volume).finish([])
    assert finished.size_bytes == 0
    assert volume.read_bytes(f"{STEM}.log.cleaned") == b""
    assert not volume.exists(f"{STEM}.txnindex.cleaned")


def test_discarding_removes_the_files_of_this_segment_and_no_others(volume: SimVolume) -> None:
    volume.write_bytes(f"{STEM}.log", b"the log's own")
    volume.write_bytes(f"/d/{BASE + 1:020}.log.cleaned", b"another")
    cleaned = writer(volume)
    cleaned.append(batch_of(b"a", base_offset=BASE))
    cleaned.finish([])
    discard_cleaned(volume, "/d", BASE)
    assert [entry.name for entry in volume.list_directory("/d")] == [
        f"{BASE:020}.log",
        f"{BASE + 1:020}.log.cleaned",
    ]


def test_batches_out_of_order_are_a_bug_that_shows(volume: SimVolume) -> None:
    cleaned = writer(volume)
    cleaned.append(batch_of(b"a", b"b", base_offset=BASE))
    with pytest.raises(AssertionError):
        cleaned.append(batch_of(b"c", base_offset=BASE + 1))
