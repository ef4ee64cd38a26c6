"""The one way for records to leave: the same bytes by every road, never read from a disk on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.handlers.fetch.record_answers import RecordsAnswer, warm
from millrace.broker.network.connection import Connection
from millrace.broker.network.dispatch import ApiStats, Route
from millrace.broker.network.outgoing import SENDFILE_MIN_BYTES, Chunk
from millrace.broker.network.requests import Request
from millrace.core.ids import TopicId
from millrace.log.disk.volume import FileHandle
from millrace.log.errors import StorageError
from millrace.log.partition.log_slice import LogSlice
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.decisions import Access
from millrace.security.acls.index import AclIndex
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.fetch_codec import PartitionData, TopicData, sole_records_frame

TOPIC_ID = TopicId(bytes(range(16)))
SESSION_ID = 99


class File:
    """Holds its content in memory, and says whether the page cache has it."""

    path = PurePath("segment.log")

    def __init__(self, content: bytes, *, is_cached: bool = True, fails: bool = False) -> None:
        self.content = content
        self._is_cached = is_cached
        self._fails = fails

    def is_cached(self, _position: int, _size_bytes: int) -> bool:
        return self._is_cached

    def read_at(self, position: int, size_bytes: int) -> bytes:
        if self._fails:
            raise StorageError("read", "segment.log", "the disk is gone")
        self._is_cached = True
        return self.content[position : position + size_bytes]


class FakeConnection:
    """Keeps what it is asked to send, in order."""

    def __init__(self) -> None:
        self.frames: list[bytes | Sequence[Chunk]] = []
        self.aborted: list[str] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.now = 5.0
        self.services = SimpleNamespace(log_directories=SimpleNamespace(volume=self), access=Access())

    def ticks(self) -> float:
        return self.now

    def lane(self, _waits: object, _path: object) -> Executor | None:
        return None

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(work)

    def take_place(self, request: Request) -> None:
        request.has_place = True

    def complete(self, request: Request, response: bytes | Sequence[Chunk]) -> None:
        """A place, if it has one, is always the first."""
        request.is_over = request.has_place
        self.frames.append(response)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)

    def sent(self) -> bytes:
        """The one frame that was sent, as a client receives it."""
        (frame,) = self.frames
        if isinstance(frame, bytes):
            return frame
        return b"".join(
            chunk if isinstance(chunk, bytes) else cast("LogSlice", chunk).read() for chunk in frame
        )


class Asked:
    """One request and its answer."""

    def __init__(self, version: int = 17) -> None:
        self.version = version
        self.connection = FakeConnection()
        self.stats = ApiStats()
        self.route = SimpleNamespace(version=version, stats=self.stats, flexible_response=version >= 12)
        self.answer = RecordsAnswer(cast("Connection", self.connection), cast("Route", self.route))
        self.answer.correlation_id = 7
        self.answer.started = 2.0
        self.read_again_count = 0

    def read_again(self) -> None:
        self.read_again_count += 1

    def decoded(self) -> Any:
        head = 9 if self.version >= 12 else 8
        return schema.response_decoder(ApiKey.FETCH, self.version)(self.connection.sent()[head:])


def slice_of(content: bytes, **fields: bool) -> LogSlice:
    """Behind something else in its file, and not known to be in the page cache."""
    file = File(b"other" + content, **fields)
    return LogSlice(cast("FileHandle", file), 5, len(content), False)


def topic_of(*records: LogSlice | None) -> list[TopicData]:
    parts = [PartitionData(index, 0, 10, 10, 0, each) for index, each in enumerate(records)]
    return [TopicData("orders", TOPIC_ID, parts)]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
@pytest.mark.parametrize("has_waited", [False, True])
@pytest.mark.parametrize("size_bytes", [1, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES])
def test_small_records_are_copied_and_large_ones_stay_in_their_file(
    version: int, has_waited: bool, size_bytes: int
) -> None:
    asked = Asked(version)
    content = bytes(size_bytes)
    if has_waited:
        asked.answer.reserve()
    asked.answer.send(topic_of(slice_of(content)), SESSION_ID, read_again=asked.read_again)
    (part,) = asked.decoded().responses[0].partitions
    assert part.records == content
    is_copied = isinstance(asked.connection.frames[0], bytes)
    assert is_copied == (version >= 12 and size_bytes < SENDFILE_MIN_BYTES)
    assert asked.stats.count == 1
    assert asked.stats.sum_s == 3.0
    assert asked.answer.is_over == has_waited, "one without a place serves the next request as well"


def test_records_of_several_partitions_leave_in_one_frame() -> None:
    asked = Asked()
    large = bytes(SENDFILE_MIN_BYTES)
    asked.answer.send(
        topic_of(slice_of(b"one"), None, slice_of(large)), SESSION_ID, read_again=asked.read_again
    )
    answer = asked.decoded()
    assert answer.session_id == SESSION_ID
    assert [part.records or b"" for part in answer.responses[0].partitions] == [b"one", b"", large]


def test_cold_records_are_read_by_a_thread_before_they_leave() -> None:
    asked = Asked()
    cold, hot = slice_of(b"cold", is_cached=False), slice_of(b"hot")
    left: list[float] = []

    async def send() -> None:
        asked.answer.send(topic_of(cold, hot), SESSION_ID, read_again=asked.read_again, leaving=left.append)
        assert asked.answer.has_place, "later answers queue behind it"
        assert not asked.connection.frames
        assert not left
        asked.connection.now = 6.0
        (work,) = asked.connection.tasks
        await work

    asyncio.run(send())
    assert not cold.is_cold()
    assert left == [6.0]
    assert asked.stats.sum_s == 4.0
    assert [part.records for part in asked.decoded().responses[0].partitions] == [b"cold", b"hot"]


def test_cold_records_are_not_sent_if_permissions_change_while_they_are_read() -> None:
    asked = Asked()

    async def send() -> None:
        cold = slice_of(b"cold", is_cached=False)
        asked.answer.send(topic_of(cold), SESSION_ID, read_again=asked.read_again)
        asked.connection.services.access.replace(Authorizer(acls=AclIndex([])))
        (work,) = asked.connection.tasks
        await work

    asyncio.run(send())
    assert asked.connection.frames == []
    assert asked.read_again_count == 1


def test_warm_records_leave_at_once_and_their_time_is_told() -> None:
    asked = Asked()
    left: list[float] = []
    asked.answer.send(
        topic_of(slice_of(b"warm")), SESSION_ID, read_again=asked.read_again, leaving=left.append
    )
    assert left == [5.0]
    assert not asked.connection.tasks


def test_records_that_cannot_be_read_end_the_connection() -> None:
    """An answer without them would tell the consumer that there are none."""
    asked = Asked()
    asked.answer.send(topic_of(slice_of(b"lost", fails=True)), SESSION_ID, read_again=asked.read_again)
    assert asked.connection.frames == []
    assert len(asked.connection.aborted) == 1
    # In a thread nobody is told yet: sending meets the same failure.
    warm([slice_of(b"lost", fails=True)])


@pytest.mark.parametrize("version", [4, 7, 11, 12, 17])
def test_a_refusal_names_no_session_and_no_topics(version: int) -> None:
    asked = Asked(version)
    asked.answer.refuse(71)
    answer = asked.decoded()
    assert answer.responses == []
    assert answer.session_id == 0
    assert answer.error_code == (71 if version >= 7 else 0), "older answers have no place for it"
    assert asked.stats.errors == {71: 1}


@given(
    version=st.integers(12, 18),
    records=st.binary(min_size=1, max_size=300),
    session_id=st.integers(0, 2**31 - 1),
    result=st.tuples(st.integers(0, 2**31 - 1), *(st.integers(-1, 2**62) for _ in range(3))),
    tells_aborted=st.booleans(),
)
def test_records_in_memory_leave_in_the_same_bytes_as_those_that_were_read(
    version: int, records: bytes, session_id: int, result: tuple[int, int, int, int], tells_aborted: bool
) -> None:
    topic_id = TOPIC_ID if version >= 13 else None
    read = Asked(version)
    newest = sole_records_frame(
        7, session_id, ("orders", topic_id), result, records, tells_aborted=tells_aborted
    )
    partition, high_watermark, last_stable_offset, log_start_offset = result
    data = PartitionData(
        partition,
        0,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        slice_of(records),
        [] if tells_aborted else None,
    )
    read.answer.send([TopicData("orders", topic_id, [data])], session_id, read_again=read.read_again)
    assert newest == read.connection.sent()
