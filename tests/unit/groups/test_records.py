"""The bytes of `__consumer_offsets` are Kafka's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator.decision import Record
from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.groups.commands import CommittedOffset
from millrace.groups.records import GroupRecordCodec, committed_offset, stored_offset
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages import group_records as records
from millrace.wire.messages.group_records import GROUP_RECORDS
from millrace.wire.messages.share_group_records import SHARE_GROUP_RECORDS
from millrace.wire.messages.streams_group_records import STREAMS_GROUP_RECORDS
from millrace.wire.schema_encoder import compile_encoder
from tools import generate_records
from tools.kafka_distribution import KafkaUnavailable

CODEC = GroupRecordCodec()


@pytest.mark.parametrize(
    "target, generate",
    [
        (generate_records.TARGET, generate_records.generate),
        (generate_records.TRANSACTION_TARGET, generate_records.generate_transaction_records),
        (generate_records.SHARE_TARGET, generate_records.generate_share_groups),
        (generate_records.STREAMS_TARGET, generate_records.generate_streams_groups),
        (generate_records.SHARE_STATE_TARGET, generate_records.generate_share_state),
    ],
    ids=lambda given: getattr(given, "stem", ""),
)
def test_the_generated_modules_are_what_the_generator_writes(
    target: Path, generate: Callable[[], str]
) -> None:
    try:
        expected = generate()
    except (KafkaUnavailable, ValueError) as missing:
        pytest.skip(f"no jars of Kafka: {missing}")
    assert target.read_text() == expected, "run tools/generate_records.py"


def test_every_type_survives_encoding() -> None:
    for schema in (*GROUP_RECORDS[1:], *SHARE_GROUP_RECORDS, *STREAMS_GROUP_RECORDS):
        said = schema.value()
        record = Record(
            schema.key(), committed_offset(said) if isinstance(said, records.OffsetCommitValue) else said
        )
        key, value = CODEC.encode(record)
        assert CODEC.decode(key, value) == record
        assert key[:2] == schema.number.to_bytes(2, "big")
        assert CODEC.decode(key, None) == Record(schema.key(), None)


def test_an_offset_is_written_in_the_layout_of_kafka() -> None:
    key, value = CODEC.encode(
        Record(
            records.OffsetCommitKey(group="g", topic="t", partition=7),
            CommittedOffset(42, 3, "m", 9, -1, NO_TOPIC_ID),
        )
    )
    assert key.hex() == "0001" + "0001" + "67" + "0001" + "74" + "00000007"
    assert value is not None
    assert value.hex() == "0004" + f"{42:016x}" + "00000003" + "02" + "6d" + f"{9:016x}" + "00"


@given(
    st.text(max_size=300),
    st.text(max_size=300),
    st.integers(0, 2**31 - 1),
    st.builds(
        CommittedOffset,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.text(max_size=300),
        st.integers(-(2**63), 2**63 - 1),
        st.just(-1),
        st.binary(min_size=16, max_size=16).map(TopicId) | st.just(NO_TOPIC_ID),
    ),
)
def test_offsets_are_written_as_their_schema_says(
    group: str, topic: str, partition: int, committed: CommittedOffset
) -> None:
    key = records.OffsetCommitKey(group=group, topic=topic, partition=partition)
    encoded_key, value = CODEC.encode(Record(key, committed))
    assert encoded_key == b"\0\1" + compile_encoder(records.OffsetCommitKey, 0, flexible=False)(key)
    encode = compile_encoder(records.OffsetCommitValue, 4, flexible=True)
    assert value == b"\0\4" + encode(stored_offset(committed))
    assert CODEC.decode(encoded_key, value) == Record(key, committed)


def test_an_offset_with_its_own_expiry_takes_the_version_that_carries_one() -> None:
    value = CommittedOffset(1, -1, "", 5, 8, NO_TOPIC_ID)
    record = Record(records.OffsetCommitKey(group="g", topic="t"), value)
    key, encoded = CODEC.encode(record)
    assert encoded is not None
    assert encoded[:2] == b"\0\1"
    assert CODEC.decode(key, encoded) == record


def test_the_oldest_key_means_an_offset_too() -> None:
    key, value = CODEC.encode(
        Record(
            records.OffsetCommitKey(group="g", topic="t", partition=1),
            CommittedOffset(5, -1, "", 0, -1, NO_TOPIC_ID),
        )
    )
    decoded = CODEC.decode(b"\0\0" + key[2:], value)
    assert decoded is not None
    assert decoded.key == records.OffsetCommitKey(group="g", topic="t", partition=1)


def test_unknown_types_and_versions_are_left_alone() -> None:
    assert CODEC.decode(b"\0\x63anything", b"\0\0") is None
    key, _ = CODEC.encode(Record(records.GroupMetadataKey(group="g"), None))
    assert CODEC.decode(key, b"\0\x63anything") is None


@pytest.mark.parametrize("key, value", [(b"", None), (b"\0\1\0", None), (b"\0\2\0\1g", b"\0\3\xff")])
def test_damaged_records_are_told_apart(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedRequest):
        CODEC.decode(key, value)
