"""Compaction against a simple model: the newest record of each key stays where it was, the rest goes."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.log.batches.reader import read_batches
from millrace.log.cleaning.batch_filter import LastOfProducer
from millrace.log.cleaning.compaction import (
    CompactionJob,
    CompactionResult,
    SegmentToClean,
    compact,
    group_segments,
)
from millrace.log.cleaning.key_offsets import ENTRY_BYTES, shortened
from millrace.log.disk.volume import DiskVolume
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.time_index import TimeIndex
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex
from millrace.wire.batch_header import DELETE_HORIZON_BIT, BatchHeader
from millrace.wire.compression import Codec
from millrace.wire.records import (
    ControlMarker,
    ControlType,
    MalformedBatch,
    Record,
    build_batch,
    build_marker,
    check_batch,
    read_records,
)
from tests.unit.log.unsynced import UnsyncedVolume

NOW = 10_000_000
RETENTION = 1_000


@dataclass
class DiskLog:
    """Segments in a directory, written and swapped without the real log."""

    directory: Path
    volume: DiskVolume = field(default_factory=UnsyncedVolume)
    bases: list[int] = field(default_factory=list)
    next_offset: int = 0

    def write_segment(self, batches: list[bytes], aborted: list[AbortedTransaction] | None = None) -> None:
        base = self.next_offset
        self.path(base, ".log").write_bytes(b"".join(batches))
        if aborted:
            index = TxnIndex(self.volume.file(str(self.path(base, ".txnindex")), create=True))
            for entry in aborted:
                index.append(entry)
        self.bases.append(base)
        self.next_offset = check_batch(batches[-1]).next_offset

    def job(self, **changes: Any) -> CompactionJob:
        job = CompactionJob(
            directory=str(self.directory),
            segments=tuple(
                SegmentToClean(base_offset=base, size_bytes=self.path(base, ".log").stat().st_size)
                for base in self.bases
            ),
            first_dirty_offset=0,
            end_offset=self.next_offset,
            now_ms=NOW,
            delete_retention_ms=RETENTION,
            segment_bytes=1 << 30,
            segment_index_bytes=1 << 20,
            index_interval_bytes=100,
            max_decompressed_message_bytes=1 << 20,
            map_bytes_max=1 << 20,
        )
        return replace(job, **changes)

    def compact(self, **changes: Any) -> CompactionResult:
        result = compact(self.volume, self.job(**changes))
        for group in result.groups:
            for base in group.replaces:
                for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                    self.path(base, suffix).unlink(missing_ok=True)
                self.bases.remove(base)
            base = group.cleaned.base_offset
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                cleaned = self.path(base, suffix + ".cleaned")
                if cleaned.exists():
                    cleaned.rename(self.path(base, suffix))
            self.bases = sorted([*self.bases, base])
            assert self.path(base, ".log").stat().st_size == group.cleaned.size_bytes
        assert not list(self.directory.glob("*.cleaned"))
        return result

    def batches(self) -> list[bytes]:
        found = []
        for base in self.bases:
            file = self.volume.file(str(self.path(base, ".log")))
            found += [bytes(batch) for _, batch in read_batches(file, file.size_bytes())]
            file.close()
        return found

    def headers(self) -> list[BatchHeader]:
        return [check_batch(batch) for batch in self.batches()]

    def records(self) -> list[Record]:
        return [
            record
            for batch in self.batches()
            if not check_batch(batch).is_control
            for record in read_records(batch)
        ]

    def check_indexes(self) -> None:
        for base in self.bases:
            log = self.volume.file(str(self.path(base, ".log")))
            starts = {position: check_batch(batch) for position, batch in read_batches(log, log.size_bytes())}
            if not self.path(base, ".index").exists():
                continue
            index_file = self.volume.file(str(self.path(base, ".index")))
            index = OffsetIndex(index_file, base_offset=base, stored_size_bytes=index_file.size_bytes())
            entries = index.entries()
            assert entries == sorted(set(entries))
            for relative, position in entries:
                assert starts[position].last_offset == base + relative
            time_file = self.volume.file(str(self.path(base, ".timeindex")))
            times = TimeIndex(time_file, base_offset=base, stored_size_bytes=time_file.size_bytes()).entries()
            assert times == sorted(set(times))
            for timestamp, relative in times:
                assert all(
                    h.max_timestamp <= timestamp for h in starts.values() if h.last_offset <= base + relative
                )
            newest = max((header.max_timestamp for header in starts.values()), default=-1)
            assert (times[-1][0] if times else -1) == max(newest, -1)
            for file in (log, index_file, time_file):
                file.close()

    def path(self, base: int, suffix: str) -> Path:
        return self.directory / f"{base:020d}{suffix}"


@pytest.fixture
def log(tmp_path: Path) -> DiskLog:
    return DiskLog(tmp_path)


def rec(offset: int, key: bytes | None, value: bytes | None = b"v", timestamp: int = 100) -> Record:
    return Record(offset, timestamp, key, value)


def test_the_newest_record_of_each_key_stays_at_its_offset(log: DiskLog) -> None:
    log.write_segment([build_batch([rec(0, b"a"), rec(1, b"b"), rec(2, b"a")]), build_batch([rec(3, b"c")])])
    log.write_segment([build_batch([rec(4, b"b"), rec(5, b"d")])])
    result = log.compact()
    assert [(r.offset, r.key) for r in log.records()] == [(2, b"a"), (3, b"c"), (4, b"b"), (5, b"d")]
    assert result.clean_offset == 6
    assert log.bases == [0]
    assert [header.base_offset for header in log.headers()] == [0, 3, 4]
    assert result.stats.records_read == 6
    assert result.stats.records_written == 4
    log.check_indexes()


def test_keys_that_begin_alike_are_different_keys(log: DiskLog) -> None:
    long_key = b"y" * 4000
    keys = [b"", b"x", b"x" * 46, b"x" * 47, b"x" * 48, long_key, long_key + b"y", shortened(long_key)]
    log.write_segment([build_batch([rec(offset, key) for offset, key in enumerate(keys)])])
    log.compact()
    assert [record.key for record in log.records()] == keys


def test_records_without_a_key_go(log: DiskLog) -> None:
    # They can only be there because the topic became compacted later.
    log.write_segment([build_batch([rec(0, None), rec(1, b"a")])])
    assert log.compact().stats.records_without_key == 1
    assert [record.offset for record in log.records()] == [1]


def test_a_tombstone_stays_until_its_horizon_and_then_goes(log: DiskLog) -> None:
    log.write_segment(
        [build_batch([rec(0, b"a"), rec(1, b"a", None, 70), rec(2, b"b", b"x", 50)], codec=Codec.LZ4)]
    )
    log.write_segment([build_batch([rec(3, b"z")])])
    log.compact()
    assert log.records() == [rec(1, b"a", None, 70), rec(2, b"b", b"x", 50), rec(3, b"z")]
    first = log.headers()[0]
    assert first.attributes & DELETE_HORIZON_BIT
    assert first.base_timestamp == NOW + RETENTION
    assert first.max_timestamp == 70

    log.compact(now_ms=NOW + RETENTION - 1)
    assert [record.offset for record in log.records()] == [1, 2, 3]
    assert log.headers()[0] == first
    result = log.compact(now_ms=NOW + RETENTION)
    assert log.records() == [rec(2, b"b", b"x", 50), rec(3, b"z")]
    assert result.stats.tombstones_removed == 1


def test_the_last_batch_of_the_range_stays_even_empty(log: DiskLog) -> None:
    # Otherwise a log whose tail was compacted away would hand out the same offsets twice.
    log.write_segment([build_batch([rec(0, b"a")]), build_batch([rec(1, b"a", None)])])
    log.compact()
    log.compact(now_ms=NOW + RETENTION)
    assert log.records() == []
    (header,) = log.headers()
    assert (header.base_offset, header.next_offset, header.records_count) == (1, 2, 0)


def test_an_active_producers_last_batch_keeps_its_sequence(log: DiskLog) -> None:
    def batch(offset: int, producer_id: int, sequence: int) -> bytes:
        return build_batch(
            [rec(offset, b"k")],
            producer_id=producer_id,
            producer_epoch=3,
            base_sequence=sequence,
            leader_epoch=8,
        )

    log.write_segment([batch(0, 7, 0), batch(1, 7, 1), batch(2, 8, 0)])
    log.write_segment([build_batch([rec(3, b"k")])])
    log.compact(producers={7: LastOfProducer(last_data_offset=1, epoch=3)})
    assert [record.offset for record in log.records()] == [3]
    kept = log.headers()[0]
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (7, 3, 1)
    assert (kept.base_offset, kept.last_offset, kept.leader_epoch, kept.records_count) == (1, 1, 8, 0)
    # It goes when the producer is no longer active, and stays empty until then.
    log.compact(producers={7: LastOfProducer(last_data_offset=1, epoch=3)})
    assert log.headers()[0] == kept
    log.compact()
    assert [header.base_offset for header in log.headers()] == [3]


def txn(offset: int, producer_id: int, *keys: bytes) -> bytes:
    return build_batch(
        [rec(offset + index, key) for index, key in enumerate(keys)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=offset,
        transactional=True,
    )


def marker(offset: int, producer_id: int, control_type: int) -> bytes:
    return build_marker(
        ControlMarker(control_type, 0),
        offset=offset,
        timestamp=100,
        producer_id=producer_id,
        producer_epoch=0,
    )


def test_aborted_records_go_at_once_and_their_marker_later(log: DiskLog) -> None:
    aborted = AbortedTransaction(5, 1, 3, 4)
    log.write_segment([build_batch([rec(0, b"a")]), txn(1, 5, b"a", b"b")])
    log.write_segment([marker(3, 5, ControlType.ABORT), build_batch([rec(4, b"z")])], [aborted])
    log.compact()
    # The aborted record is newer than the first one and must not displace it.
    assert [record.offset for record in log.records()] == [0, 4]
    assert [header.base_offset for header in log.headers()] == [0, 3, 4]
    index = TxnIndex(log.volume.file(str(log.path(0, ".txnindex"))))
    assert index.all_aborted() == [aborted]

    # Second pass: nothing of the transaction is left, the marker gets its horizon and leaves the index.
    log.compact()
    assert log.headers()[1].attributes & DELETE_HORIZON_BIT
    assert not log.path(0, ".txnindex").exists()
    log.compact(now_ms=NOW + RETENTION - 1)
    assert len(log.headers()) == 3
    log.compact(now_ms=NOW + RETENTION)
    assert [header.base_offset for header in log.headers()] == [0, 4]


def test_a_transaction_that_ends_in_a_later_segment_is_known(log: DiskLog) -> None:
    log.write_segment([txn(0, 5, b"a"), txn(1, 6, b"b")])
    first = log.next_offset
    log.write_segment(
        [marker(2, 5, ControlType.ABORT), marker(3, 6, ControlType.COMMIT)], [AbortedTransaction(5, 0, 2, 1)]
    )
    job = log.job()
    log.compact(segments=job.segments[:1], later_segments=(first,), end_offset=first)
    assert [record.offset for record in log.records()] == [1]


def test_a_producer_may_abort_and_then_commit(log: DiskLog) -> None:
    log.write_segment(
        [
            txn(0, 5, b"a"),
            marker(1, 5, ControlType.ABORT),
            txn(2, 5, b"b"),
            marker(3, 5, ControlType.COMMIT),
            txn(4, 5, b"c"),
            marker(5, 5, ControlType.ABORT),
            build_batch([rec(6, b"z")]),
        ],
        [AbortedTransaction(5, 0, 1, 2), AbortedTransaction(5, 4, 5, 6)],
    )
    log.compact()
    assert [record.offset for record in log.records()] == [2, 6]
    log.compact(first_dirty_offset=4)
    assert [record.offset for record in log.records()] == [2, 6]


def test_a_commit_marker_stays_while_its_records_do(log: DiskLog) -> None:
    log.write_segment([txn(0, 5, b"a"), marker(1, 5, ControlType.COMMIT), build_batch([rec(2, b"z")])])
    for now in (NOW, NOW + 10 * RETENTION):
        log.compact(now_ms=now)
        assert [header.base_offset for header in log.headers()] == [0, 1, 2]
    log.write_segment([build_batch([rec(3, b"a")])])
    log.compact()
    assert [header.base_offset for header in log.headers()] == [1, 2, 3]
    log.compact()
    log.compact(now_ms=NOW + RETENTION)
    assert [header.base_offset for header in log.headers()] == [2, 3]


def test_the_marker_of_an_active_producer_stays_empty(log: DiskLog) -> None:
    # Its epoch is what fences older instances of the producer.
    log.write_segment([marker(0, 5, ControlType.COMMIT), build_batch([rec(1, b"z")])])
    producers = {5: LastOfProducer(last_data_offset=-1, epoch=0)}
    log.compact(producers=producers)
    log.compact(producers=producers, now_ms=NOW + RETENTION)
    kept = log.headers()[0]
    assert (kept.is_control, kept.producer_id, kept.records_count) == (True, 5, 0)
    log.compact(producers=producers, now_ms=NOW + RETENTION)
    assert log.headers()[0] == kept


def test_nothing_from_the_end_offset_on_is_touched(log: DiskLog) -> None:
    log.write_segment([build_batch([rec(0, b"a"), rec(1, b"b")])])
    end = log.next_offset
    log.write_segment([build_batch([rec(2, b"a")])])
    job = log.job()
    log.compact(segments=job.segments[:1], end_offset=end)
    assert [record.offset for record in log.records()] == [0, 1, 2]


def test_a_full_map_cleans_as_far_as_it_reaches(log: DiskLog) -> None:
    log.write_segment([build_batch([rec(i, b"k%d" % (i % 10))]) for i in range(40)])
    result = log.compact(map_bytes_max=4 * ENTRY_BYTES)
    assert result.clean_offset == 4
    result = log.compact(map_bytes_max=1 << 20, first_dirty_offset=result.clean_offset)
    assert result.clean_offset == 40
    assert [record.offset for record in log.records()] == list(range(30, 40))


def test_a_batch_with_more_keys_than_the_map_holds_is_still_cleaned(log: DiskLog) -> None:
    log.write_segment([build_batch([rec(i, b"k%d" % i) for i in range(10)]), build_batch([rec(10, b"k0")])])
    result = log.compact(map_bytes_max=ENTRY_BYTES)
    assert result.clean_offset == 10
    assert log.compact(map_bytes_max=ENTRY_BYTES, first_dirty_offset=10).clean_offset == 11
    assert [record.offset for record in log.records()] == list(range(1, 11))


def test_a_damaged_batch_stops_the_pass_and_leaves_the_log_as_it_was(log: DiskLog) -> None:
    log.write_segment([build_batch([rec(0, b"a")]), build_batch([rec(1, b"a")])])
    path = log.path(0, ".log")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MalformedBatch):
        log.compact()
    assert path.read_bytes() == damaged
    assert [entry.name for entry in log.directory.iterdir()] == [path.name]


def test_small_segments_are_joined_up_to_the_limits() -> None:
    job = CompactionJob(
        directory="",
        segments=(),
        first_dirty_offset=0,
        end_offset=2**32,
        now_ms=0,
        delete_retention_ms=0,
        segment_bytes=100,
        segment_index_bytes=50,
        index_interval_bytes=1,
        max_decompressed_message_bytes=1,
        map_bytes_max=1,
    )
    segments = [
        SegmentToClean(base_offset=0, size_bytes=60, index_bytes=8),
        SegmentToClean(base_offset=10, size_bytes=40, index_bytes=8),
        SegmentToClean(base_offset=20, size_bytes=1, index_bytes=8),
        SegmentToClean(base_offset=30, size_bytes=1, index_bytes=48),
        SegmentToClean(base_offset=40, size_bytes=300, index_bytes=0),
        SegmentToClean(base_offset=50, size_bytes=1, time_index_bytes=40),
        SegmentToClean(base_offset=60, size_bytes=1, time_index_bytes=20),
        SegmentToClean(base_offset=2**31 + 60, size_bytes=1),
    ]
    groups = [[segment.base_offset for segment in group] for group in group_segments(segments, job)]
    assert groups == [[0, 10], [20], [30], [40], [50], [60], [2**31 + 60]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[list[Record]]], int]:
    """Segments of batches of records, with few keys and many tombstones."""
    offset = 0
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(1, 5))):
            batch = []
            for _ in range(draw(st.integers(1, 6))):
                key = b"key-%d" % draw(st.integers(0, 7)) * draw(st.sampled_from([1, 5]))
                value = draw(st.none() | st.just(b"value-%d" % offset))
                batch.append(Record(offset, draw(st.integers(1, 1000)), key, value, (("h", b"%d" % offset),)))
                offset += 1
            batches.append(batch)
        segments.append(batches)
    return segments, draw(st.integers(0, 2**32))


@given(history=histories())
@settings(max_examples=40, deadline=None)
def test_many_passes_agree_with_the_model(
    history: tuple[list[list[list[Record]]], int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    segments, seed = history
    rng = random.Random(seed)
    log = DiskLog(tmp_path_factory.mktemp("log"))
    originals: dict[int, Record] = {}
    now = NOW
    clean = 0
    for batches in segments:
        log.write_segment([build_batch(batch, codec=rng.choice(list(Codec))) for batch in batches])
        originals.update((record.offset, record) for batch in batches for record in batch)
        if rng.random() < 0.3:
            continue
        before = {record.offset for record in log.records()}
        now += rng.choice([0, RETENTION // 2, RETENTION])
        result = log.compact(
            now_ms=now,
            first_dirty_offset=clean,
            map_bytes_max=rng.choice([1 << 20, 3 * ENTRY_BYTES]),
            segment_bytes=rng.choice([200, 1 << 30]),
        )
        clean = result.clean_offset
        _check_against_model(log, originals, before, clean)
    end = log.next_offset
    assert log.headers()[-1].next_offset == end
    for _ in range(2):
        now += RETENTION
        log.compact(now_ms=now, first_dirty_offset=0)
        log.check_indexes()
    newest = {record.key: record for record in originals.values()}
    assert log.records() == sorted(record for record in newest.values() if record.value is not None)


def _check_against_model(log: DiskLog, originals: dict[int, Record], before: set[int], clean: int) -> None:
    left = log.records()
    # One offset, one value; offsets in order; nothing comes back.
    assert all(originals[record.offset] == record for record in left)
    offsets = [record.offset for record in left]
    assert offsets == sorted(set(offsets))
    assert set(offsets) <= before
    headers = log.headers()
    assert all(a.last_offset < b.base_offset for a, b in itertools.pairwise(headers))
    # The newest record of each key in the clean part is there unless it is a tombstone.
    newest = {record.key: record for record in originals.values() if record.offset < clean}
    for key, record in newest.items():
        if record.value is not None:
            assert record.offset in offsets, key
        assert [r.offset for r in left if r.key == key and r.offset < clean] in ([record.offset], [])
    # What was not looked at is all there.
    assert {offset for offset in before if offset >= clean} <= set(offsets)
    log.check_indexes()
