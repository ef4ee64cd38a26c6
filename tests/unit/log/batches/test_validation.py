"""Preparation of a producer's batch: keys, deep checks, the topic's compression."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import MillraceError
from millrace.log.batches.validation import (
    RECORD_ERRORS_MAX,
    InvalidRecords,
    InvalidRecordTimestamps,
    batch_needs_preparation,
    is_preparation_needed,
    prepare,
)
from millrace.log.errors import CorruptBatch, UnsupportedBatchFormat
from millrace.wire.compression import CODEC_NAMES, Codec, DecompressedTooLarge
from millrace.wire.records import (
    ControlMarker,
    MalformedBatch,
    Record,
    assemble_batch,
    build_batch,
    build_marker,
    check_batch,
    inflate_records,
    read_records,
)

NOW = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Rules:
    cleanup_compact: bool = False
    deep_validation: bool = False
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    max_decompressed_message_bytes: int = 1_000_000
    delayed_delivery_enable: bool = False
    dedup_window_ms: int = 0
    timestamp_log_append: bool = False
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 3_600_000


def batch_of(*keys: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(index, NOW, key, b"value-%d" % index) for index, key in enumerate(keys)]
    return build_batch(records, codec=codec, producer_id=9, producer_epoch=1, base_sequence=4)


def test_plain_topics_need_nothing() -> None:
    assert not is_preparation_needed(Rules())
    batch = memoryview(batch_of(None))
    assert prepare(batch, Rules(), now_ms=NOW) is batch


@pytest.mark.parametrize("source", Codec, ids=CODEC_NAMES.get)
@pytest.mark.parametrize("target", Codec, ids=CODEC_NAMES.get)
def test_batches_are_stored_in_the_topics_compression(source: Codec, target: Codec) -> None:
    rules = Rules(compression_type=CODEC_NAMES[target])
    batch = batch_of(b"a", None, b"c", codec=source)
    assert is_preparation_needed(rules)
    assert batch_needs_preparation(rules, check_batch(batch).attributes) == (source != target)
    prepared = prepare(memoryview(bytearray(batch)), rules, now_ms=NOW)
    assert not prepared.readonly
    before, after = check_batch(batch), check_batch(prepared)
    assert after.compression == target
    assert after[6:] == before[6:]
    assert read_records(prepared) == read_records(batch)


def test_a_compressed_batch_larger_than_allowed_is_refused() -> None:
    batch = build_batch([Record(0, NOW, b"k", bytes(2_000_000))], codec=Codec.ZSTD)
    for rules in (Rules(compression_type="gzip"), Rules(cleanup_compact=True), Rules(deep_validation=True)):
        with pytest.raises(DecompressedTooLarge):
            prepare(memoryview(batch), rules, now_ms=NOW)


@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_a_compacted_topic_names_the_records_without_a_key(codec: Codec) -> None:
    rules = Rules(cleanup_compact=True)
    good = memoryview(batch_of(b"a", b"", codec=codec))
    assert prepare(good, rules, now_ms=NOW) is good
    with pytest.raises(InvalidRecords) as caught:
        prepare(memoryview(batch_of(b"a", None, b"c", None, codec=codec)), rules, now_ms=NOW)
    assert [error.batch_index for error in caught.value.record_errors] == [1, 3]
    with pytest.raises(InvalidRecords) as caught:
        prepare(memoryview(batch_of(b"a") + batch_of(None)), rules, now_ms=NOW)
    assert [error.batch_index for error in caught.value.record_errors] == [1]


def test_the_list_of_bad_records_is_bounded() -> None:
    with pytest.raises(InvalidRecords) as caught:
        prepare(memoryview(batch_of(*[None] * 5_000)), Rules(cleanup_compact=True), now_ms=NOW)
    assert len(caught.value.record_errors) == RECORD_ERRORS_MAX


def test_control_batches_are_left_to_the_append() -> None:
    marker = build_marker(ControlMarker(1, 0), offset=0, timestamp=NOW, producer_id=1, producer_epoch=0)
    batch = memoryview(marker)
    assert prepare(batch, Rules(compression_type="gzip", deep_validation=True), now_ms=NOW) is batch


def test_damage_on_the_way_is_told_from_records_that_never_will_be_right() -> None:
    # Clients send again after the first and must not after the second.
    batch = bytearray(batch_of(b"a"))
    batch[-1] ^= 1
    for damaged in (batch, batch[:-1], batch + b"\0", batch[:20]):
        with pytest.raises(CorruptBatch):
            prepare(memoryview(damaged), Rules(cleanup_compact=True), now_ms=NOW)
    batch[16] = 1
    with pytest.raises(UnsupportedBatchFormat):
        prepare(memoryview(batch), Rules(cleanup_compact=True), now_ms=NOW)
    garbage = assemble_batch(check_batch(batch_of(b"a")), b"garbage")
    with pytest.raises(MalformedBatch):
        prepare(memoryview(garbage), Rules(cleanup_compact=True), now_ms=NOW)


def test_deep_validation_wants_consecutive_offsets() -> None:
    batch = build_batch([Record(0, NOW, b"a", b""), Record(2, NOW, b"b", b"")])
    with pytest.raises(MalformedBatch, match="consecutive"):
        prepare(memoryview(batch), Rules(deep_validation=True), now_ms=NOW)


def test_deep_validation_checks_every_timestamp() -> None:
    rules = Rules(deep_validation=True, timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    times = [NOW, NOW - 101, NOW - 100, NOW + 50, NOW + 51]
    batch = build_batch([Record(index, time, b"k", b"") for index, time in enumerate(times)])
    with pytest.raises(InvalidRecordTimestamps) as caught:
        prepare(memoryview(batch), rules, now_ms=NOW)
    assert [error.batch_index for error in caught.value.record_errors] == [1, 4]
    append_time = Rules(deep_validation=True, timestamp_log_append=True, timestamp_before_max_ms=1)
    prepare(memoryview(batch), append_time, now_ms=NOW)


def test_a_false_maximum_timestamp_is_corrected() -> None:
    # Otherwise time-based retention and look-ups would believe a producer's lie.
    batch = batch_of(b"a", b"b")
    header = check_batch(batch)
    lie = assemble_batch(header._replace(max_timestamp=NOW + 1000), inflate_records(batch, header))
    prepared = prepare(memoryview(lie), Rules(deep_validation=True), now_ms=NOW)
    assert check_batch(prepared).max_timestamp == NOW
    assert bytes(prepared) == batch


@given(
    place=st.integers(0, 2_000),
    value=st.integers(0, 255),
    codec=st.sampled_from(Codec),
    target=st.sampled_from(["producer", "uncompressed", "lz4"]),
)
@settings(max_examples=100, deadline=None)
def test_damaged_batches_give_only_our_errors(place: int, value: int, codec: Codec, target: str) -> None:
    batch = batch_of(*[b"key-%d" % index for index in range(20)], codec=codec)
    header = check_batch(batch)
    data = bytearray(inflate_records(batch, header))
    data[place % len(data)] = value
    rules = Rules(deep_validation=True, timestamp_after_max_ms=2**63 - 1, compression_type=target)
    with contextlib.suppress(MillraceError):
        prepare(memoryview(assemble_batch(header, data, codec)), rules, now_ms=NOW)
