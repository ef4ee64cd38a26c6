"""An internal partition, read back into records a piece at a time."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.coordinator.decision import Record, TransactionalRecord, TransactionEnded
from millrace.coordinator.loading import PIECE_BYTES, Piece, locate, read
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.wire.records import ControlMarker, ControlType, build_batch, build_marker
from millrace.wire.records import Record as StoredRecord

PLACE = TopicPartition("__counters", 0)


class Codec:
    """Keys are names; some of them nobody can read, and some are of a kind that nobody knows."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        raise AssertionError("nothing is written here")

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        if key == b"damaged":
            raise MillraceError("it is damaged")
        return None if key == b"unknown" else Record(key, value)


def stored(offset: int, key: bytes | None, value: bytes | None = b"v") -> StoredRecord:
    return StoredRecord(offset, 1_000, key, value)


def read_all(*batches: bytes, offset: int = 0) -> Piece:
    found: Any = SimpleNamespace(read=lambda: b"".join(batches))
    return read(found, offset, Codec(), PLACE)


def test_records_come_in_the_order_of_the_log() -> None:
    first = build_batch([stored(0, b"a"), stored(1, b"b", None)])
    second = build_batch([stored(2, b"a", b"w")])
    piece = read_all(first, second)
    assert piece.records == [Record(b"a", b"v"), Record(b"b", None), Record(b"a", b"w")]
    assert (piece.next_offset, piece.size_bytes) == (3, len(first) + len(second))


def test_what_was_read_before_is_left_out() -> None:
    piece = read_all(build_batch([stored(5, b"a"), stored(6, b"b"), stored(7, b"c")]), offset=6)
    assert [record.key for record in piece.records if isinstance(record, Record)] == [b"b", b"c"]
    assert piece.next_offset == 8


def test_the_next_offset_is_behind_the_batch_even_if_compaction_took_its_last_records() -> None:
    piece = read_all(build_batch([stored(3, b"a")], base_offset=3, last_offset=9))
    assert piece.next_offset == 10
    assert len(piece.records) == 1


def test_records_of_a_transaction_name_their_producer_until_its_marker_says_how_it_ended() -> None:
    batch = build_batch(
        [stored(0, b"a")], producer_id=7, producer_epoch=1, base_sequence=0, transactional=True
    )
    markers = [
        build_marker(ControlMarker(kind, 0), offset=offset, timestamp=1, producer_id=7, producer_epoch=1)
        for offset, kind in ((1, ControlType.COMMIT), (2, ControlType.ABORT))
    ]
    piece = read_all(batch, *markers)
    assert piece.records == [
        TransactionalRecord(7, Record(b"a", b"v")),
        TransactionEnded(7, is_commit=True),
        TransactionEnded(7, is_commit=False),
    ]
    assert piece.next_offset == 3


def test_a_record_that_nobody_can_read_is_skipped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    batch = build_batch([stored(0, b"damaged"), stored(1, b"unknown"), stored(2, None), stored(3, b"a")])
    with caplog.at_level(logging.WARNING):
        piece = read_all(batch)
    assert piece.records == [Record(b"a", b"v")]
    assert "__counters-0: the record at 0 is skipped: it is damaged" in caplog.text
    assert "__counters-0: the record at 1 is skipped, because its type is unknown" in caplog.text


class Log:
    log_start_offset = 10

    def __init__(self, size_bytes: int = 5) -> None:
        self.found = SimpleNamespace(size_bytes=size_bytes)
        self.asked: list[tuple[object, ...]] = []

    def read(self, *arguments: object) -> SimpleNamespace:
        self.asked.append(arguments)
        return self.found


def test_reading_begins_where_the_log_does_and_takes_a_piece() -> None:
    log: Any = Log()
    assert locate(log, 0, 50) is log.found
    assert locate(log, 20, 50) is log.found
    assert log.asked == [(10, PIECE_BYTES, 50, True), (20, PIECE_BYTES, 50, True)]


def test_nothing_is_read_at_the_end_or_where_nothing_is_committed() -> None:
    log: Any = Log()
    assert locate(log, 50, 50) is None
    assert log.asked == []
    empty: Any = Log(size_bytes=0)
    assert locate(empty, 20, 50) is None
