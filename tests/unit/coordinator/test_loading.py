"""An internal partition is read back in pieces: what is committed, in order, past what nobody can read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.coordinator import loading
from millrace.coordinator.decision import Record, TransactionalRecord, TransactionEnded
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.errors import MalformedRequest
from millrace.wire.records import ControlMarker, ControlType, build_batch, build_marker
from millrace.wire.records import Record as StoredRecord
from tests.unit.log.support import PARTITION, Disk


class Codec:
    """Texts; what begins with "new" is of a later version, and "bad" is damaged."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        raise AssertionError("nothing is written here")

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        if key.startswith(b"bad"):
            raise MalformedRequest("damaged")
        return None if key.startswith(b"new") else Record(key.decode(), value)


@pytest.fixture
def log() -> Iterator[PartitionLog]:
    disk = Disk(SimVolume(random.Random(1)), "/data")
    yield disk.log()
    disk.dispose()


def append(log: PartitionLog, *keys: bytes | None, producer_id: int = -1) -> None:
    is_open = producer_id >= 0
    first = log.log_end_offset
    batch = build_batch(
        [StoredRecord(first + at, 1, key, b"x") for at, key in enumerate(keys)],
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0 if is_open else -1,
        base_sequence=0 if is_open else -1,
        transactional=is_open,
    )
    log.append_replicated(memoryview(batch))


def read_from(log: PartitionLog, offset: int) -> loading.Piece:
    found = loading.locate(log, offset, log.high_watermark)
    assert found is not None
    return loading.read(found, offset, Codec(), PARTITION)


def test_what_is_not_committed_is_not_there_yet(log: PartitionLog) -> None:
    append(log, b"a")
    assert loading.locate(log, 0, 0) is None
    log.high_watermark = 1
    piece = read_from(log, 0)
    assert (piece.records, piece.next_offset) == ([Record("a", b"x")], 1)
    assert loading.locate(log, piece.next_offset, log.high_watermark) is None


def test_a_piece_that_begins_within_a_batch_has_only_the_rest_of_it(log: PartitionLog) -> None:
    append(log, b"a", b"b", b"c")
    log.high_watermark = 3
    piece = read_from(log, 2)
    assert (piece.records, piece.next_offset) == ([Record("c", b"x")], 3)
    assert piece.size_bytes > 0


def test_transactional_records_and_their_end_are_told_as_such(log: PartitionLog) -> None:
    append(log, b"a", producer_id=7)
    append(log, b"b")
    for kind in (ControlType.COMMIT, ControlType.ABORT):
        offset = log.log_end_offset
        marker = build_marker(
            ControlMarker(kind, 0),
            offset=offset,
            timestamp=1,
            producer_id=7,
            producer_epoch=0,
            leader_epoch=0,
        )
        log.append_replicated(memoryview(marker))
    log.high_watermark = log.log_end_offset
    piece = read_from(log, 0)
    assert piece.records == [
        TransactionalRecord(7, Record("a", b"x")),
        Record("b", b"x"),
        TransactionEnded(7, True),
        TransactionEnded(7, False),
    ]
    assert piece.next_offset == 4


def test_a_record_that_nobody_can_read_keeps_no_other_from_being_loaded(
    log: PartitionLog, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, b"a", b"bad", b"newer", None, b"b")
    log.high_watermark = 5
    piece = read_from(log, 0)
    assert (piece.records, piece.next_offset) == ([Record("a", b"x"), Record("b", b"x")], 5)
    skipped = [entry.getMessage() for entry in caplog.records]
    assert [f"record at {offset}" in text for offset, text in enumerate(skipped, 1)] == [True] * 3
