"""Batches are found by their headers, and no more of the log is read than is handed out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from millrace.broker.queues import batch_headers
from millrace.broker.queues.batch_headers import Found, find_batches, slices_of, without_aborted
from millrace.log.config import LogConfig
from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker, read_records, split_batches
from tests.unit.log.support import Disk, append, batch_of

END = 30
PLENTY = 1 << 30


@pytest.fixture
def disk() -> Iterator[Disk]:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=250, file_delete_delay_ms=0)
    found = Disk(SimVolume(random.Random(1)), "/data", config)
    yield found
    found.abandon()
    found.dispose()


@pytest.fixture
def log(disk: Disk) -> PartitionLog:
    """Batches of two records in three segments: 0 to 9, 10 to 19, 20 to 29."""
    log = disk.log()
    for number in range(15):
        append(log, b"%d" % number, bytes(50))
        if number in (4, 9):
            log.roll()
    return log


def find(
    log: PartitionLog,
    ranges: Sequence[tuple[int, int]],
    records_max: int = 100,
    bytes_max: int = PLENTY,
    limit_offset: int = END,
) -> Found:
    return find_batches(log, ranges, limit_offset=limit_offset, records_max=records_max, bytes_max=bytes_max)


def firsts(found: Found) -> list[int]:
    return [batch.first_offset for batch in found.batches]


def content(pieces: Sequence[bytes | LogSlice]) -> list[int]:
    data = b"".join(piece if isinstance(piece, bytes) else piece.read() for piece in pieces)
    return [record.offset for batch in split_batches(memoryview(data)) for record in read_records(batch)]


@pytest.mark.parametrize(
    "ranges, expected, count",
    [
        ([(0, 29)], list(range(0, 30, 2)), 30),
        ([(3, 3)], [2], 1),
        ([(3, 4)], [2, 4], 2),
        ([(8, 11)], [8, 10], 4),
        # Two ranges in one batch, and one that reaches into the next.
        ([(4, 4), (5, 6)], [4, 6], 3),
        ([(0, 0), (1, 1)], [0], 2),
        # Ranges far apart, in all three files.
        ([(1, 1), (12, 13), (29, 29)], [0, 12, 28], 4),
        ([(29, 40)], [28], 1),
        ([], [], 0),
    ],
)
def test_the_batches_of_ranges_are_found(
    log: PartitionLog, ranges: list[tuple[int, int]], expected: list[int], count: int
) -> None:
    found = find(log, ranges)
    assert firsts(found) == expected
    assert found.records_count == count
    assert found.size_bytes == sum(batch.size_bytes for batch in found.batches)
    assert [batch.last_offset for batch in found.batches] == [first + 1 for first in expected]


@pytest.mark.parametrize("skip", [0, 1_000])
def test_ranges_are_found_whether_headers_between_them_are_passed_by_or_not(
    log: PartitionLog, skip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_headers, "SKIP_OFFSETS_MAX", skip)
    assert firsts(find(log, [(0, 0), (6, 6), (8, 8), (27, 27)])) == [0, 6, 8, 26]


@pytest.mark.parametrize(
    "records_max, expected", [(1, [0]), (2, [0]), (3, [0, 2]), (11, [0, 2, 4, 6, 8, 10])]
)
def test_no_more_batches_are_found_than_hold_so_many_records(
    log: PartitionLog, records_max: int, expected: list[int]
) -> None:
    assert firsts(find(log, [(0, 29)], records_max)) == expected


def test_a_few_records_cost_few_reads(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_headers, "CHUNK_BYTES", 61)
    sizes = []
    read_at = type(log.segments[0].file.handle()).read_at

    def counted(self: object, position: int, size_bytes: int) -> bytes:
        sizes.append(size_bytes)
        return read_at(self, position, size_bytes)  # type: ignore[arg-type]

    monkeypatch.setattr(type(log.segments[0].file.handle()), "read_at", counted)
    find(log, [(20, 29)], 4)
    assert sizes == [61, 61]


def test_the_bytes_are_bounded_but_one_batch_is_found(log: PartitionLog) -> None:
    size = log.segments[0].size_bytes // 5
    assert firsts(find(log, [(0, 29)], bytes_max=3 * size)) == [0, 2, 4]
    assert firsts(find(log, [(0, 29)], bytes_max=3 * size - 1)) == [0, 2]
    assert firsts(find(log, [(0, 29)], bytes_max=1)) == [0]


def test_nothing_is_found_at_the_limit(log: PartitionLog) -> None:
    assert firsts(find(log, [(26, 29)], limit_offset=28)) == [26]
    assert find(log, [(28, 29)], limit_offset=28).batches == []


def test_what_retention_took_is_out_of_range(log: PartitionLog) -> None:
    log.log_start_offset = 10
    with pytest.raises(OffsetOutOfRange):
        find(log, [(0, 29)])


def test_pieces_hold_whole_batches(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(log, [(0, 3), (8, 12)])
    everything = [0, 1, 2, 3, 8, 9, 10, 11, 12, 13]
    assert content(slices_of(found.batches)) == everything
    assert len(slices_of(found.batches)) == 1
    # Too large to have been read together with their headers.
    monkeypatch.setattr(batch_headers, "CHUNK_BYTES", 61)
    found = find(log, [(0, 3), (8, 12)])
    pieces = slices_of(found.batches)
    assert content(pieces) == everything
    assert [isinstance(piece, LogSlice) for piece in pieces] == [True, True, True]


def test_cold_headers_are_not_read_on_the_loop(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogSlice, "is_cold", lambda found: not found.is_hot)
    found = find(log, [(2, 25)])
    assert not found.batches
    assert found.cold is not None
    assert content([found.cold]) == list(range(2, 10))
    # The newest are in memory, and nobody needs to ask.
    assert find(log, [(22, 25)]).cold is None


def test_what_was_found_before_cold_headers_is_enough(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogSlice, "is_cold", lambda found: found.position > 0 or len(seen) > 1)
    seen: list[int] = []
    monkeypatch.setattr(batch_headers, "AHEAD_BYTES", log.segments[0].size_bytes // 5)
    monkeypatch.setattr(batch_headers, "CHUNK_BYTES", 61)
    found = find(log, [(0, 29)])
    assert firsts(found) == [0]
    assert found.cold is None


def test_ranges_of_which_nothing_is_left_are_named(disk: Disk) -> None:
    log = disk.log()
    # As compaction leaves it: offsets 2 to 3 and 6 to 9 are gone.
    for first, values in ((0, 2), (4, 2), (10, 1)):
        log.append_replicated(batch_of(*[b"x"] * values, base_offset=first, leader_epoch=0))
    log.high_watermark = 11
    found = find(log, [(2, 2), (3, 4), (7, 8), (9, 9)], limit_offset=11)
    assert firsts(found) == [4]
    assert found.missing == [(2, 2), (7, 8), (9, 9)]
    # Whether something comes later cannot be told.
    assert find(log, [(11, 20)], limit_offset=11).missing == []


def test_records_of_aborted_transactions_are_left_out(disk: Disk) -> None:
    log = disk.log()
    append(log, b"plain")
    for producer, kind in ((7, ControlType.ABORT), (8, ControlType.COMMIT)):
        log.append_own(batch_of(b"one", producer_id=producer, transactional=True), 0)
        marker = build_marker(
            ControlMarker(kind, 0), offset=0, timestamp=1, producer_id=producer, producer_epoch=0
        )
        log.append_own(memoryview(bytearray(marker)), 0)
    end = log.log_end_offset
    log.high_watermark = end
    found = find(log, [(0, end - 1)], limit_offset=end)
    assert len(found.batches) == 5
    kept = without_aborted(log, found.batches)
    assert [batch.first_offset for batch in kept] == [
        batch.first_offset for batch in found.batches if batch.producer_id != 7 or batch.is_control
    ]
    assert len(kept) == 4
