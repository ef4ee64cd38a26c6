"""Frames and request headers: what is read, what is refused, and what is written."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import (
    REQUEST_HEAD,
    NodeEndpoint,
    encode_endpoints,
    head_reader,
    read_uvarint,
    response_frame,
    skip_client_id,
    skip_tags,
    uvarint,
)

UINT32 = st.integers(0, 2**32 - 1)


@given(UINT32, st.binary(max_size=4), st.binary(max_size=4))
def test_a_varint_is_read_as_it_was_written(value: int, before: bytes, after: bytes) -> None:
    written = uvarint(value)
    assert len(written) == max(1, -(-value.bit_length() // 7))
    data = before + written + after
    assert read_uvarint(data, len(before), len(data)) == (value, len(before) + len(written))


@given(UINT32)
def test_a_varint_that_is_cut_short_is_refused_even_if_the_buffer_goes_on(value: int) -> None:
    written = uvarint(value)
    with pytest.raises(MalformedRequest, match="cut short"):
        read_uvarint(written, 0, len(written) - 1)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00", b"\xff" * 9])
def test_a_varint_of_more_than_32_bits_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="longer than 32 bits"):
        read_uvarint(data, 0, len(data))


@given(st.lists(st.tuples(UINT32, st.binary(max_size=200)), max_size=4), st.binary(max_size=3))
def test_tagged_fields_are_skipped_whatever_they_hold(fields: list[tuple[int, bytes]], after: bytes) -> None:
    block = uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in fields)
    assert skip_tags(block + after, 0, len(block + after)) == len(block)


def test_a_tagged_field_may_not_reach_beyond_the_request() -> None:
    assert skip_tags(b"\x01\x00\x03abcd", 0, 6) == 6
    with pytest.raises(MalformedRequest, match="a tagged field is longer"):
        skip_tags(b"\x01\x00\x04abcd", 0, 6)


@pytest.mark.parametrize(
    "length, data, flexible, body_at",
    [
        (-1, b"", False, 0),
        (0, b"", False, 0),
        (3, b"abc", False, 3),
        (3, b"abc\x00", True, 4),
        (-1, b"\x00", True, 1),
        (1, b"a\x01\x05\x02xy", True, 6),
    ],
)
def test_the_body_begins_behind_the_client_id_and_the_tags(
    length: int, data: bytes, flexible: bool, body_at: int
) -> None:
    data += b"body"
    assert skip_client_id(data, 0, length, len(data), flexible=flexible) == body_at


@pytest.mark.parametrize(
    "length, reason", [(-2, "negative length: -2"), (5, "5 bytes, more than the request")]
)
def test_a_client_id_of_an_impossible_length_is_refused(length: int, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        skip_client_id(b"abcdefgh", 0, length, 4, flexible=False)


def test_a_flexible_header_without_room_for_its_tags_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="cut short"):
        skip_client_id(b"abc\x00", 0, 3, 3, flexible=True)


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.booleans())
def test_a_frame_says_its_own_length(correlation_id: int, body: bytes, flexible: bool) -> None:
    frame = response_frame(correlation_id, body, flexible=flexible)
    length, correlation = struct.unpack_from(">ii", frame)
    assert length == len(frame) - 4
    assert correlation == correlation_id
    assert frame[8:] == (b"\0" if flexible else b"") + body


def test_endpoints_are_one_tagged_field_with_a_compact_array() -> None:
    assert encode_endpoints([]) == b"\0"
    encoded = encode_endpoints([NodeEndpoint(1, "h", 9092, None), NodeEndpoint(2, "hé", 1, "r")])
    first = b"\x00\x00\x00\x01" + b"\x02h" + struct.pack(">i", 9092) + b"\x00" + b"\x00"
    second = b"\x00\x00\x00\x02" + b"\x04h\xc3\xa9" + struct.pack(">i", 1) + b"\x02r" + b"\x00"
    body = b"\x03" + first + second
    assert encoded == b"\x01\x00" + bytes([len(body)]) + body
    assert skip_tags(encoded, 0, len(encoded)) == len(encoded)


def test_a_head_is_read_with_the_client_id_behind_its_length() -> None:
    head = REQUEST_HEAD.pack(1, 12, 7, 2) + b"me"
    assert head_reader(2)(b"...." + head, 4) == (1 << 16 | 12, 7, b"\0\2me")
    assert head_reader(2) is head_reader(2)
    with pytest.raises(struct.error):
        head_reader(3)(head, 0)
