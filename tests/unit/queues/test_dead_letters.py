from __future__ import annotations

from millrace.queues.dead_letters import (
    Origin,
    Source,
    Stamp,
    build_bare_letters,
    build_letters,
    letter_headers,
    offsets_in,
    origin_of,
)
from millrace.queues.share_partition.changes import DeadLetter, DeadLetterCause
from millrace.wire.records import ControlMarker, ControlType, Record, build_batch, build_marker, read_records

SOURCE = Source("billing", "orders", 3)
STAMP = Stamp(7, 0)
LETTER = DeadLetter(11, 22, 5, DeadLetterCause.DELIVERY_LIMIT)


def _data(*, first: int = 10, count: int = 5, batches: int = 3) -> bytes:
    return b"".join(
        build_batch(
            [
                Record(offset, 7, b"k%d" % offset, b"v%d" % offset, (("trace", b"t"),))
                for offset in range(start, start + count)
            ]
        )
        for start in range(first, first + count * batches, count)
    )


def test_a_dead_letter_has_kafkas_headers_behind_those_of_its_record() -> None:
    letters = build_letters(_data(), SOURCE, LETTER, now_ms=99, stamp=STAMP, records_max=100, copies=True)
    assert letters.last_offset == 22
    records = read_records(letters.batch)
    assert [record.value for record in records] == [b"v%d" % offset for offset in range(11, 23)]
    assert records[0] == Record(
        0,
        99,
        b"k11",
        b"v11",
        (
            ("trace", b"t"),
            ("__dlq.errors.topic", b"orders"),
            ("__dlq.errors.partition", b"3"),
            ("__dlq.errors.offset", b"11"),
            ("__dlq.errors.group", b"billing"),
            ("__dlq.errors.delivery.count", b"5"),
            ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
        ),
    )


def test_without_the_copy_there_are_only_the_headers() -> None:
    letters = build_letters(_data(), SOURCE, LETTER, now_ms=99, stamp=STAMP, records_max=100, copies=False)
    assert read_records(letters.batch)[0] == Record(0, 99, None, None, letter_headers(SOURCE, 11, LETTER))


def test_no_more_are_built_at_once_than_wanted_and_none_that_are_written() -> None:
    letters = build_letters(
        _data(), SOURCE, LETTER, now_ms=99, stamp=STAMP, records_max=3, copies=True, written=frozenset([12])
    )
    assert [record.key for record in read_records(letters.batch)] == [b"k11", b"k13", b"k14"]
    assert letters.last_offset == 14


def test_offsets_without_a_record_have_no_dead_letter() -> None:
    commit = ControlMarker(ControlType.COMMIT, 0)
    marker = build_marker(commit, offset=11, timestamp=5, producer_id=1, producer_epoch=0)
    data = marker + build_batch([Record(14, 7, None, b"v")])
    letters = build_letters(data, SOURCE, LETTER, now_ms=99, stamp=STAMP, records_max=100, copies=True)
    assert (len(read_records(letters.batch)), letters.last_offset) == (1, 14)


def test_of_lost_records_the_headers_are_left() -> None:
    letters = build_bare_letters(SOURCE, LETTER, 12, now_ms=99, stamp=STAMP)
    origins = [origin_of(record) for record in read_records(letters.batch)]
    assert origins == [
        Origin(SOURCE, 11, 5, DeadLetterCause.DELIVERY_LIMIT),
        Origin(SOURCE, 12, 5, DeadLetterCause.DELIVERY_LIMIT),
    ]


def test_the_last_death_of_a_record_counts() -> None:
    again = DeadLetter(40, 40, 1, DeadLetterCause.REJECTED)
    other = Source("repair", "dlq.orders", 0)
    headers = (*letter_headers(SOURCE, 11, LETTER), *letter_headers(other, 40, again))
    assert origin_of(Record(0, 0, None, None, headers)) == Origin(other, 40, 1, DeadLetterCause.REJECTED)


def test_other_records_are_no_dead_letters() -> None:
    assert origin_of(Record(0, 0, None, None)) is None
    headers = dict(letter_headers(SOURCE, 11, LETTER)) | {"__dlq.errors.offset": b"eleven"}
    assert origin_of(Record(0, 0, None, None, tuple(headers.items()))) is None
    headers = dict(letter_headers(SOURCE, 11, LETTER)) | {"__dlq.errors.message": b"something"}
    origin = origin_of(Record(0, 0, None, None, tuple(headers.items())))
    assert origin is not None
    assert origin.cause is None


def test_what_a_source_has_in_a_dead_letter_topic_is_found() -> None:
    ours = build_letters(_data(), SOURCE, LETTER, now_ms=99, stamp=STAMP, records_max=2, copies=True).batch
    other = Source("another", "orders", 3)
    theirs = build_letters(_data(), other, LETTER, now_ms=99, stamp=STAMP, records_max=4, copies=True).batch
    assert offsets_in(ours + theirs + _data(), SOURCE) == {11, 12}
