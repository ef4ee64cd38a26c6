"""Off the straight path of compiled codecs: long varints, and errors that name the field."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import read_uvarint
from millrace.wire.framing import uvarint as uvarint_of_frames
from millrace.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millrace.wire.schema_runtime import STRING_LENGTH_MAX, explain, long_string_prefix, long_uvarint, uvarint

VERSION = 12


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_a_varint_is_written_and_read_as_in_frames(value: int, before: bytes) -> None:
    written = uvarint(value)
    assert written == uvarint_of_frames(value)
    data = before + written
    assert long_uvarint(data, len(before)) == read_uvarint(data, len(before), len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80" * 5 + b"\0"])
def test_a_varint_of_more_than_32_bits_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="longer than 32 bits"):
        long_uvarint(data, 0)


def test_a_string_may_have_as_many_bytes_as_kafka_takes() -> None:
    assert long_string_prefix(STRING_LENGTH_MAX + 1) == uvarint(STRING_LENGTH_MAX + 1)
    with pytest.raises(struct.error, match=f"a string of {STRING_LENGTH_MAX + 1} bytes"):
        long_string_prefix(STRING_LENGTH_MAX + 2)


def brokers(*wrong: object) -> MetadataResponse:
    return MetadataResponse(brokers=list(wrong))  # type: ignore[arg-type]


def broker(**fields: Any) -> MetadataResponse:
    return brokers(MetadataResponseBroker(**fields))


def topic(**fields: Any) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(**fields)])


def partition(**fields: Any) -> MetadataResponse:
    return topic(partitions=[MetadataResponsePartition(**fields)])


@pytest.mark.parametrize(
    "message, fault",
    [
        (broker(host=None), "brokers[0].host: null is not allowed"),
        (broker(port=2**31), "brokers[0].port: 2147483648 is no int32"),
        (broker(host=7), "brokers[0].host: int is no str"),
        (MetadataResponse(brokers="ab"), "brokers: str is no list"),  # type: ignore[arg-type]
        (brokers(1), "brokers[0].int is no MetadataResponseBroker"),
        (MetadataResponse(cluster_id="x" * 32_768), "cluster_id: longer than 32767 bytes"),
        (topic(topic_id=b"short"), "topics[0].topic_id: 5 bytes, not the 16 of a UUID"),
        (topic(topic_id="s"), "topics[0].topic_id: str is no bytes"),
        (partition(replica_nodes=[1, "two"]), "topics[0].partitions[0].replica_nodes[1]: 'two' is no int32"),
        (b"no message", "bytes is no MetadataResponse"),
    ],
)
def test_an_error_names_the_path_of_the_field_that_could_not_be_encoded(message: object, fault: str) -> None:
    cause = struct.error("cause")
    with pytest.raises(ValueError, match=re.escape(f"MetadataResponse v{VERSION}: {fault}")) as caught:
        explain(message, MetadataResponse, VERSION, cause)
    assert caught.value.__cause__ is cause


def test_without_a_fault_the_cause_is_named() -> None:
    with pytest.raises(ValueError, match=f"MetadataResponse v{VERSION}: out of paper"):
        explain(MetadataResponse(), MetadataResponse, VERSION, RuntimeError("out of paper"))
