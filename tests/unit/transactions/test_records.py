"""The bytes of `__transaction_state` are Kafka's."""

from __future__ import annotations

import pytest

from millrace.coordinator.decision import Record
from millrace.transactions.records import TransactionRecordCodec
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

CODEC = TransactionRecordCodec()
KEY = TransactionLogKey(transactional_id="payments")
VALUE = TransactionLogValue(
    producer_id=7,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=[PartitionsSchema(topic="orders", partition_ids=[0, 2])],
    transaction_last_update_timestamp_ms=10,
    transaction_start_timestamp_ms=9,
    client_transaction_version=2,
)


def test_a_record_survives_encoding() -> None:
    key, value = CODEC.encode(Record(KEY, VALUE))
    assert key == b"\0\0" + b"\0\x08payments"
    assert value is not None
    assert value[:2] == b"\0\1", "the version that has the client's transaction version"
    assert CODEC.decode(key, value) == Record(KEY, VALUE)
    assert CODEC.encode(Record(KEY, None)) == (key, None)
    assert CODEC.decode(key, None) == Record(KEY, None)


def test_the_version_of_older_brokers_is_read() -> None:
    # Version 0, as Kafka 3 writes it: producer 7, epoch 3, time-out, Ongoing, orders-0, both times.
    value = bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 01 00000001 0006 6f7264657273 00000001 00000000"
        "000000000000000a 0000000000000009"
    )
    record = CODEC.decode(b"\0\0\0\x08payments", value)
    assert record is not None
    found = record.value
    assert isinstance(found, TransactionLogValue)
    assert (found.producer_id, found.producer_epoch, found.transaction_status) == (7, 3, 1)
    assert found.transaction_partitions == [PartitionsSchema(topic="orders", partition_ids=[0])]
    assert (found.transaction_last_update_timestamp_ms, found.transaction_start_timestamp_ms) == (10, 9)
    assert found.client_transaction_version == 0


def test_types_and_versions_of_the_future_are_left_alone() -> None:
    key, value = CODEC.encode(Record(KEY, VALUE))
    assert value is not None
    assert CODEC.decode(b"\0\1" + key[2:], value) is None
    assert CODEC.decode(key, b"\0\2" + value[2:]) is None
    assert CODEC.decode(key, b"\xff\xff" + value[2:]) is None


@pytest.mark.parametrize("key, value", [(b"", None), (b"\0", None), (b"\0\0\0\x09short", None)])
def test_damaged_keys_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedRequest):
        CODEC.decode(key, value)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_damaged_values_are_refused(size: int) -> None:
    key, value = CODEC.encode(Record(KEY, VALUE))
    assert value is not None
    with pytest.raises(MalformedRequest):
        CODEC.decode(key, value[:size])
