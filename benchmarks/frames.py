"""Prebuilt requests and the few answers the load generators look at: no codec, only what a benchmark needs.

Written apart from `millrace.wire` on purpose: a mistake there must not hide behind the same mistake here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import crc32c

CLIENT_ID: Final = b"millrace-bench"
CORRELATION_ID: Final = 7
ACKS_ALL: Final = -1
PRODUCE_TIMEOUT_MS: Final = 30_000
BATCH_HEADER_BYTES: Final = 61

# librdkafka's highest Produce version: the encoding that most clients send.
PRODUCE: Final = (0, 10)
FETCH: Final = (1, 11)
METADATA: Final = (3, 1)
API_VERSIONS: Final = (18, 0)


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """What a benchmark wants to know of a Fetch answer."""

    error_code: int
    high_watermark: int
    records_bytes: int


def build_batch(
    value: bytes, count: int, timestamp_ms: int, header: tuple[bytes, bytes] | None = None
) -> bytes:
    """A valid, uncompressed record batch (v2) of `count` equal records without keys."""
    assert count > 0, count
    headers = b"\x00" if header is None else b"\x02" + b"".join(_varint(len(part)) + part for part in header)
    records = b"".join(_record(value, offset_delta, headers) for offset_delta in range(count))
    after_crc = struct.pack(
        ">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count
    ) + records  # fmt: skip
    # The leader epoch, the magic and the CRC itself stand between the length and the checked part.
    length = 4 + 1 + 4 + len(after_crc)
    return struct.pack(">qiibI", 0, length, -1, 2, crc32c.crc32c(after_crc)) + after_crc


def records_that_fit(value_size: int, batch_bytes_max: int) -> int:
    """How many records of `value_size` bytes a batch of at most `batch_bytes_max` bytes holds."""
    count, used = 0, BATCH_HEADER_BYTES
    while True:
        used += _record_size(value_size, count)
        if used > batch_bytes_max:
            return max(count, 1)
        count += 1


def produce_request(topic: str, partition: int, batch: bytes) -> bytes:
    """A whole Produce frame (acks=all) for one partition."""
    name = topic.encode()
    body = b"".join(
        (
            b"\x00",  # no transactional id
            struct.pack(">hi", ACKS_ALL, PRODUCE_TIMEOUT_MS),
            b"\x02" + _uvarint(len(name) + 1) + name,
            b"\x02" + struct.pack(">i", partition),
            _uvarint(len(batch) + 1) + batch,
            b"\x00\x00\x00",  # no tagged fields in partition, topic and request
        )
    )
    return _framed(_header(*PRODUCE) + b"\x00" + body)


def produce_error_at(topic: str) -> int:
    """Where a framed Produce answer for one partition of `topic` holds its error code."""
    name_length = len(topic.encode())
    size_correlation_tags, arrays, partition_index = 4 + 4 + 1, 2, 4
    return size_correlation_tags + arrays + len(_uvarint(name_length + 1)) + name_length + partition_index


def api_versions_request() -> bytes:
    return _framed(_header(*API_VERSIONS))


def metadata_request() -> bytes:
    """Asks for the brokers and no topic."""
    return _framed(_header(*METADATA) + struct.pack(">i", 0))


def metadata_broker_count(answer: bytes) -> int:
    """The number of brokers in an unframed Metadata answer."""
    return int(struct.unpack_from(">i", answer, 4)[0])


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """A Fetch frame without a session that waits for nothing."""
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, 0, 1, max_bytes, 0, 0, -1)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes)
    body += struct.pack(">ih", 0, 0)
    return _framed(_header(*FETCH) + body)


def fetch_answer(answer: bytes) -> FetchAnswer:
    """The one partition of an unframed Fetch answer."""
    _, _, error_code, _, topic_count = struct.unpack_from(">iihii", answer, 0)
    if error_code != 0 or topic_count == 0:
        return FetchAnswer(error_code, -1, 0)
    position = 18
    (name_length,) = struct.unpack_from(">h", answer, position)
    position += 2 + name_length + 4
    _, error_code, high_watermark, _, _, aborted = struct.unpack_from(">ihqqqi", answer, position)
    # One aborted transaction is a producer id and an offset.
    position += 34 + 16 * max(aborted, 0)
    _, records_bytes = struct.unpack_from(">ii", answer, position)
    return FetchAnswer(error_code, high_watermark, max(records_bytes, 0))


def _record(value: bytes, offset_delta: int, headers: bytes) -> bytes:
    # Attributes, timestamp delta, offset delta, no key, the value, headers.
    body = b"\x00\x00" + _varint(offset_delta) + b"\x01" + _varint(len(value)) + value + headers
    return _varint(len(body)) + body


def _record_size(value_size: int, offset_delta: int) -> int:
    body = 2 + len(_varint(offset_delta)) + 1 + len(_varint(value_size)) + value_size + 1
    return len(_varint(body)) + body


def _header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID


def _framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def _varint(number: int) -> bytes:
    return _uvarint((number << 1) ^ (number >> 63))


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
