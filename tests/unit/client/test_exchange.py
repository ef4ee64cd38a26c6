"""Frames out and answers in, without any transport: bytes in whatever pieces, answers in whatever order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import InvalidAnswer
from millrace.client.exchange import BUFFER_BYTES, FRAME_BYTES_MAX, AnswerStream, Exchange, header_shape
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey


class Stream(AnswerStream):
    """Keeps what comes of each request."""

    def __init__(self) -> None:
        super().__init__("broker:9092", "me")
        self.failures: list[str] = []
        self.answers: list[tuple[str, bytes | None]] = []

    @override
    def give_up(self, failure: InvalidAnswer) -> None:
        self.failures.append(str(failure))

    def request(self, name: str, version: int = 8) -> bytes:
        def answered(body: memoryview | None) -> None:
            self.answers.append((name, None if body is None else bytes(body)))

        return self.frame(ApiKey.METADATA, version, name.encode(), answered)

    def feed(self, data: bytes) -> None:
        """As a transport does: as many bytes at once as there is room for."""
        while data and not self.failures:
            room = self.get_buffer(-1)
            assert room, "a transport that finds no room waits for ever"
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]

    @property
    def memory_bytes(self) -> int:
        return len(self._buffer)


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def test_requests_carry_api_version_number_and_name() -> None:
    exchange: Exchange[str] = Exchange("broker:9092", "me")
    assert (
        exchange.frame(ApiKey.METADATA, 8, b"body", "") == struct.pack(">ihhih", 16, 3, 8, 1, 2) + b"mebody"
    )
    frame = exchange.frame(ApiKey.METADATA, 12, b"body", "")
    assert frame == struct.pack(">ihhih", 17, 3, 12, 2, 2) + b"me\0body"


def test_numbers_begin_anew_before_they_are_negative() -> None:
    exchange: Exchange[str] = Exchange("broker:9092", "me")
    exchange._last_id = 0x7FFF_FFFE
    numbers = [struct.unpack_from(">i", exchange.frame(3, 8, b"", ""), 8)[0] for _ in range(3)]
    assert numbers == [0x7FFF_FFFF, 0, 1]


@pytest.mark.parametrize(
    "api_key", [ApiKey.METADATA, ApiKey.FETCH, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE]
)
def test_headers_have_the_shape_that_the_schema_says(api_key: ApiKey) -> None:
    low, high = schema.versions(api_key)
    for version in range(low, high + 1):
        tags, start = header_shape(api_key, version)
        assert bool(tags) == (schema.request_header_version(api_key, version) >= 2)
        assert start == 4 + schema.response_header_version(api_key, version)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.lists(st.integers(1, 400)), st.randoms())
def test_answers_find_their_requests_in_any_order_and_in_any_pieces(
    bodies: list[bytes], pieces: list[int], chance: object
) -> None:
    stream = Stream()
    for number in range(len(bodies)):
        stream.request(str(number))
    order = list(enumerate(bodies))
    chance.shuffle(order)  # type: ignore[attr-defined]  # what Hypothesis gives in the place of random.Random
    data = b"".join(answer(number + 1, body) for number, body in order)
    for piece in pieces:
        stream.feed(data[:piece])
        data = data[piece:]
    stream.feed(data)
    assert stream.answers == [(str(number), body) for number, body in order]
    assert not stream.failures


def test_the_byte_of_a_flexible_header_is_no_part_of_the_body() -> None:
    stream = Stream()
    stream.request("old", 8)
    stream.request("new", 12)
    stream.feed(answer(2, b"\0body") + answer(1, b"body"))
    assert stream.answers == [("new", b"body"), ("old", b"body")]


@pytest.mark.parametrize("size, is_possible", [
    (FRAME_BYTES_MAX, True),
    (FRAME_BYTES_MAX + 1, False),
    (int.from_bytes(b"HTTP"), False),
    (4, True),
    (3, False),
    (0, False),
    (-1, False),
    (-(1 << 31), False),
])  # fmt: skip
def test_a_length_that_no_answer_has_is_refused(size: int, is_possible: bool) -> None:
    stream = Stream()
    stream.request("a")
    stream.feed(struct.pack(">i", size))
    reason = f"broker:9092 answers, but not with the Kafka protocol: a frame of {size} bytes"
    assert [failure.startswith(reason) for failure in stream.failures] == ([] if is_possible else [True])
    assert stream.memory_bytes == BUFFER_BYTES, "memory is for bytes that have arrived"


def test_memory_grows_with_what_has_arrived() -> None:
    stream = Stream()
    stream.request("large")
    frame = answer(1, bytes(1_000_000))
    stream.feed(frame[:100_000])
    assert stream.memory_bytes < 300_000
    stream.feed(frame[100_000:])
    assert stream.answers == [("large", bytes(1_000_000))]


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    stream = Stream()
    stream.request("a")
    stream.feed(answer(7, b"") + answer(1, b"too late"))
    assert stream.failures == ["broker:9092 answered request 7, which nobody waits for"]
    assert stream.answers == [], "nothing behind it is to be trusted"


def test_an_answer_is_not_taken_twice() -> None:
    stream = Stream()
    stream.request("a")
    stream.feed(2 * answer(1, b"x"))
    assert stream.answers == [("a", b"x")]
    assert stream.failures == ["broker:9092 answered request 1, which nobody waits for"]


def test_an_answer_that_cannot_be_used_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def answered(_body: memoryview | None) -> None:
        raise ValueError("no such thing")

    stream = Stream()
    stream.frame(ApiKey.METADATA, 8, b"", answered)
    stream.feed(answer(1, b""))
    assert stream.failures == [
        "broker:9092 sent an answer that could not be used: ValueError('no such thing')"
    ]
    assert "an answer of broker:9092 could not be used" in caplog.text


def test_at_the_end_all_who_wait_are_told_once() -> None:
    stream = Stream()
    stream.request("a")
    stream.request("b")
    stream.feed(answer(1, b"x") + answer(2, b"y")[:5])
    stream.end()
    stream.end()
    assert stream.answers == [("a", b"x"), ("b", None)]
