"""What is written is what Kafka's schemas say, and what Kafka writes is understood."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator.decision import Record
from millrace.queues.share_partition.model import RecordState, ShareKey, StateBatch
from millrace.queues.state.records import (
    BATCH_BYTES_MAX,
    VALUE_BYTES_MAX,
    ShareStateCodec,
    Snapshot,
    Update,
    coordinator_key,
    parse_coordinator_key,
    snapshot_value,
    update_value,
)
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotStateBatch,
    ShareSnapshotValue,
    ShareUpdateValue,
)
from millrace.wire.schema_decoder import compile_decoder
from millrace.wire.schema_encoder import compile_encoder
from tests.unit.queues.state.lab import KEY, run

CODEC = ShareStateCodec()
FREE = RecordState.AVAILABLE
INT32 = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(-1, 2**63 - 1)
RUNS = st.builds(
    StateBatch,
    OFFSETS,
    OFFSETS,
    st.sampled_from(RecordState),
    st.integers(0, 2**15 - 1),
    st.one_of(st.just(0), st.integers(0, 2**62)),
)
ALL_RUNS = st.lists(RUNS, max_size=5).map(tuple)
KEYS = st.builds(
    ShareKey,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(min_size=16, max_size=16),
    INT32,
)
SNAPSHOTS = st.builds(
    Snapshot, INT32, INT32, INT32, OFFSETS, st.integers(-1, 2**31 - 1), OFFSETS, OFFSETS, ALL_RUNS
)
UPDATES = st.builds(Update, INT32, INT32, OFFSETS, st.integers(-1, 2**31 - 1), ALL_RUNS)


@given(KEYS, st.one_of(SNAPSHOTS, UPDATES, st.none()))
def test_records_come_back_as_they_were(key: ShareKey, value: Snapshot | Update | None) -> None:
    record = Record(key, value)
    assert CODEC.decode(*CODEC.encode(record)) == record


@given(UPDATES)
def test_an_update_takes_no_more_bytes_than_it_is_counted_with(update: Update) -> None:
    assert len(update_value(update)) <= VALUE_BYTES_MAX + len(update.batches) * BATCH_BYTES_MAX


@given(SNAPSHOTS)
def test_snapshots_are_what_the_schema_says(snapshot: Snapshot) -> None:
    """A reader that knows nothing of our field skips it."""
    found = compile_decoder(ShareSnapshotValue, 0, flexible=True)(snapshot_value(snapshot), 2)
    assert (found.snapshot_epoch, found.state_epoch, found.leader_epoch) == snapshot[:3]
    assert (found.start_offset, found.delivery_complete_count) == snapshot[3:5]
    assert (found.create_timestamp, found.write_timestamp) == snapshot[5:7]
    runs = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in found.state_batches
    ]
    assert runs == [tuple(each[:4]) for each in snapshot.batches]


def test_without_our_field_the_bytes_are_those_of_the_schema() -> None:
    update = Update(3, 4, 17, 9, (run(20, 29), run(30, 30, FREE, 2)))
    message = ShareUpdateValue(snapshot_epoch=3, leader_epoch=4, start_offset=17, delivery_complete_count=9)
    runs = [
        ShareSnapshotStateBatch(first_offset=20, last_offset=29, delivery_state=2, delivery_count=1),
        ShareSnapshotStateBatch(first_offset=30, last_offset=30, delivery_state=0, delivery_count=2),
    ]
    message = replace(message, state_batches=runs)  # type: ignore[arg-type] # both have the same fields
    expected = compile_encoder(ShareUpdateValue, 0, flexible=True)(message)
    assert update_value(update) == b"\0\0" + expected
    key_message = ShareSnapshotKey(group_id="workers", topic_id=KEY.topic_id, partition=0)
    key_bytes, _ = CODEC.encode(Record(KEY, update))
    assert key_bytes == b"\0\1" + compile_encoder(ShareSnapshotKey, 0, flexible=False)(key_message)


def test_types_and_versions_of_later_times_are_left_alone() -> None:
    key, value = CODEC.encode(Record(KEY, Update(0, 0, 0, 0, ())))
    assert value is not None
    assert CODEC.decode(b"\0\7" + key[2:], value) is None
    assert CODEC.decode(key, b"\0\1" + value[2:]) is None
    assert CODEC.decode(key, None) is None, "tombstones have the key of a snapshot"


def test_a_state_that_is_not_known_is_read_as_available() -> None:
    key, value = CODEC.encode(Record(KEY, Update(0, 0, 0, -1, (run(5, 6),))))
    assert value is not None
    later = bytearray(value)
    later[-5] = 9
    record = CODEC.decode(key, bytes(later))
    assert record is not None
    assert isinstance(record.value, Update)
    assert record.value.batches == (run(5, 6, FREE),)


@pytest.mark.parametrize("key, value", [(b"\0", None), (None, b"\0"), (None, b"\0\0\0\1")])
def test_damaged_bytes_are_refused(key: bytes | None, value: bytes | None) -> None:
    sound, _ = CODEC.encode(Record(KEY, Update(0, 0, 0, 0, ())))
    with pytest.raises(MalformedRequest):
        CODEC.decode(sound if key is None else key, value)


def test_the_key_is_found_by_kafkas_text() -> None:
    assert coordinator_key(ShareKey("a:b", bytes(range(16)), 7)) == "a:b:AAECAwQFBgcICQoLDA0ODw:7"


@given(KEYS.filter(lambda key: bool(key.group_id.strip())))
def test_the_text_of_a_key_is_read_back(key: ShareKey) -> None:
    assert parse_coordinator_key(coordinator_key(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g",
        "g:0",
        "g:AAECAwQFBgcICQoLDA0ODw",
        " :AAECAwQFBgcICQoLDA0ODw:0",
        "g:short:0",
        "g:AAECAwQFBgcICQoLDA0ODw:2147483648",
        "g:AAECAwQFBgcICQoLDA0ODw:1_0",
        "g:AAECAwQFBgcICQoLDA0ODw: 1",
    ],
)
def test_other_texts_name_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_coordinator_key(text)


@given(
    UPDATES, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8), st.integers(0, 60)
)
def test_damage_is_noticed_or_changes_values_and_nothing_else(
    update: Update, flips: list[tuple[int, int]], cut: int
) -> None:
    key, value = CODEC.encode(Record(KEY, update))
    assert value is not None
    damaged = bytearray(value)
    for place, byte in flips:
        damaged[place % len(damaged)] = byte
    for broken_key, broken in ((key, damaged[: len(damaged) - cut]), (key[: max(len(key) - cut, 0)], value)):
        try:
            found = CODEC.decode(broken_key, bytes(broken))
        except MalformedRequest:
            continue
        assert found is None or isinstance(found.value, Update)
