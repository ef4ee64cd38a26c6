"""Which records of a batch ask for something, and which ask for what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.log.batches.validation import RECORD_ERRORS_MAX, InvalidRecords
from millrace.log.config import LogConfig
from millrace.queues.delayed.model import CANCEL, DELAY_MS, DELIVER_AT, REPLACE
from millrace.queues.marked_records import DEDUP_ID, NO_MARKS, Marks, find_marks, stored_ids
from millrace.wire.compression import CODEC_NAMES, Codec, DecompressedTooLarge
from millrace.wire.records import ControlMarker, Header, MalformedBatch, Record, build_batch, build_marker

NOW = 1_700_000_000_000
DELAYED = LogConfig(delayed_delivery_enable=True, delayed_delivery_max_ms=60_000)
ONCE = LogConfig(dedup_window_ms=1_000)
BOTH = replace(DELAYED, dedup_window_ms=1_000)


def batch_of(
    *headers: tuple[Header, ...], codec: Codec = Codec.NONE, transactional: bool = False, timestamp: int = NOW
) -> memoryview:
    records = [
        Record(index, timestamp, b"key", b"value-%d" % index, each) for index, each in enumerate(headers)
    ]
    return memoryview(build_batch(records, codec=codec, transactional=transactional))


def marks_of(*headers: tuple[Header, ...], rules: LogConfig = DELAYED, **batch: int) -> Marks:
    return find_marks(batch_of(*headers, **batch), rules, now_ms=NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_delayed_records_are_found_and_lose_their_headers(codec: Codec) -> None:
    batch = batch_of(
        (),
        (("colour", b"red"), (DELIVER_AT, b"%d" % (NOW + 5_000))),
        ((DELAY_MS, b"7000"), (REPLACE, b"12")),
        ((CANCEL, b"3"),),
        codec=codec,
    )
    marks = find_marks(batch, DELAYED, now_ms=NOW)
    at, delay, cancel = marks.scheduled
    assert at[:6] == (1, NOW + 5_000, NOW, b"key", b"value-1", (("colour", b"red"),))
    assert (at.replaces, at.is_cancellation) == (-1, False)
    assert (delay.delta, delay.due_ms, delay.headers, delay.replaces) == (2, NOW + 7_000, (), 12)
    assert (cancel.delta, cancel.replaces, cancel.is_cancellation) == (3, 3, True)
    assert (marks.due, marks.ids) == ((), ())


def test_what_is_due_already_stays_in_its_batch() -> None:
    marks = marks_of(
        ((DELIVER_AT, b"%d" % NOW),), ((DELAY_MS, b"0"),), ((DELAY_MS, b"-5"),), ((DELIVER_AT, b"-1"),)
    )
    assert marks.scheduled == ()
    assert [each.delta for each in marks.due] == [0, 1, 2, 3]


def test_what_takes_anothers_place_goes_to_the_store_even_when_it_is_due() -> None:
    marks = marks_of(((DELAY_MS, b"0"), (REPLACE, b"4")))
    assert [each.replaces for each in marks.scheduled] == [4]


def test_a_delay_counts_from_the_records_time_or_from_its_arrival() -> None:
    delay = ((DELAY_MS, b"7000"),)
    assert marks_of(delay, timestamp=NOW - 2_000).scheduled[0].due_ms == NOW + 5_000
    assert marks_of(delay, timestamp=-1).scheduled[0].due_ms == NOW + 7_000
    arrival = replace(DELAYED, timestamp_log_append=True)
    (scheduled,) = marks_of(delay, timestamp=NOW - 2_000, rules=arrival).scheduled
    assert (scheduled.due_ms, scheduled.produced_ms) == (NOW + 7_000, NOW)


@pytest.mark.parametrize(
    "headers, message",
    [
        (((DELIVER_AT, b"soon"),), "allowed is a whole number"),
        (((DELIVER_AT, b""),), "allowed is a whole number"),
        (((DELAY_MS, None),), "millrace-delay-ms is null"),
        (((DELAY_MS, b"1.5"),), "allowed is a whole number"),
        (((DELAY_MS, b"\xd9\xa3"),), "allowed is a whole number"),
        (((DELAY_MS, b"9" * 30),), "allowed is a whole number"),
        (((DELAY_MS, b"60001"),), "delayed.delivery.max.ms allows 60000"),
        (((DELIVER_AT, b"%d" % (NOW + 60_001)),), "delayed.delivery.max.ms allows 60000"),
        (((DELIVER_AT, b"1"), (DELAY_MS, b"1")), "one of"),
        (((REPLACE, b"1"),), "one of"),
        (((CANCEL, b"-1"),), "is no offset"),
        (((CANCEL, b"1"), (DELAY_MS, b"1")), "none of the other headers"),
    ],
)
def test_what_cannot_be_is_refused_with_the_place_of_the_record(
    headers: tuple[Header, ...], message: str
) -> None:
    with pytest.raises(InvalidRecords) as caught:
        marks_of((), headers, (("other", b"x"),))
    (error,) = caught.value.record_errors
    assert error.batch_index == 1
    assert message in error.message


def test_the_longest_delay_is_allowed() -> None:
    assert len(marks_of(((DELAY_MS, b"60000"),), ((DELIVER_AT, b"%d" % (NOW + 60_000)),)).scheduled) == 2


def test_the_list_of_bad_records_is_bounded() -> None:
    with pytest.raises(InvalidRecords) as caught:
        marks_of(*[((DELAY_MS, b"x"),)] * 500)
    assert len(caught.value.record_errors) == RECORD_ERRORS_MAX


def test_transactions_have_no_delayed_records_and_no_ids() -> None:
    with pytest.raises(InvalidRecords, match="cannot be part of a transaction"):
        marks_of((), ((DELAY_MS, b"1"),), transactional=True)
    assert marks_of(((DEDUP_ID, b"a"),), rules=ONCE, transactional=True) == NO_MARKS
    assert stored_ids(batch_of(((DEDUP_ID, b"a"),), transactional=True), 1_000) == []


def test_settings_decide_which_headers_mean_something() -> None:
    headers = ((DELAY_MS, b"nonsense"), (DEDUP_ID, b"a"))
    assert len(marks_of(headers, rules=ONCE).ids) == 1
    assert marks_of(((DEDUP_ID, b"a"),), rules=DELAYED) == NO_MARKS
    marks = marks_of(((DELAY_MS, b"10"), (DEDUP_ID, b"a")), rules=BOTH)
    assert (len(marks.scheduled), len(marks.ids)) == (1, 1)
    assert marks.scheduled[0].headers == ((DEDUP_ID, b"a"),)


@given(ids=st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=1, max_size=20))
def test_equal_ids_have_equal_hashes_and_others_do_not(ids: list[bytes | None]) -> None:
    batch = batch_of(*[(("x", b"millrace-"), (DEDUP_ID, each)) for each in ids])
    found = find_marks(batch, ONCE, now_ms=NOW).ids
    named = [(place, each) for place, each in enumerate(ids) if each]
    assert [place for place, _ in found] == [place for place, _ in named]
    hashes = [hashed for _, hashed in found]
    assert len(dict.fromkeys(hashes)) == len(dict.fromkeys(each for _, each in named))
    assert stored_ids(batch, 1_000_000) == hashes


def test_names_in_keys_and_values_mean_nothing() -> None:
    record = Record(0, NOW, b"millrace-delay-ms", b"millrace-dedup-id", (("a", b"millrace-delay-ms"),))
    assert find_marks(memoryview(build_batch([record])), BOTH, now_ms=NOW) == NO_MARKS


def test_what_is_no_single_batch_is_left_to_the_append() -> None:
    batch = batch_of(((DEDUP_ID, b"a"),))
    marker = build_marker(ControlMarker(1, 0), offset=0, timestamp=NOW, producer_id=1, producer_epoch=0)
    for odd in (batch[:20], bytes(batch) * 2, bytes(batch) + b"\0", marker, build_batch([])):
        assert find_marks(memoryview(odd), BOTH, now_ms=NOW) == NO_MARKS
    assert stored_ids(memoryview(marker), 1_000) == []
    assert stored_ids(memoryview(build_batch([])), 1_000) == []


def test_offsets_of_a_producer_have_no_gaps() -> None:
    records = [Record(offset, NOW, None, b"v", ((DEDUP_ID, b"a"),)) for offset in (0, 2)]
    with pytest.raises(MalformedBatch):
        find_marks(memoryview(build_batch(records)), ONCE, now_ms=NOW)


def test_no_batch_inflates_beyond_the_limit() -> None:
    record = Record(0, NOW, None, bytes(100_000), ((DEDUP_ID, b"a"),))
    batch = memoryview(build_batch([record], codec=Codec.ZSTD))
    with pytest.raises(DecompressedTooLarge):
        find_marks(batch, replace(ONCE, max_decompressed_message_bytes=50_000), now_ms=NOW)
