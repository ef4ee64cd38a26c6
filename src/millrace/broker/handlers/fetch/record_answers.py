"""The one way in which records leave the broker, to consumers and to followers: encoded, brought into memory
where they are on disk only, copied where they are few and sent by `sendfile` where they are many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, cast

from millrace.broker.network.outgoing import SENDFILE_MIN_BYTES, Chunk
from millrace.core.ids import TopicId
from millrace.core.lanes import Waits
from millrace.log.errors import StorageError
from millrace.log.partition.log_slice import LogSlice
from millrace.wire.fetch_codec import (
    BEHIND_SOLE_RECORDS,
    Frame,
    Slice,
    TopicData,
    before_sole_records,
    encode_error,
    encode_frame,
)
from millrace.wire.framing import NodeEndpoint, response_frame

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.broker.network.requests import Slot
    from millrace.log.disk.volume import Volume


class RecordsAnswer:
    """The answer to one Fetch request, of a consumer or of a follower, and its place in the order of the
    connection's answers.

    The fetch calls `reserve` before it waits for anything, and then one of `refuse`, `send` and
    `send_newest`.
    """

    __slots__ = ("connection", "correlation_id", "route", "slot", "started")

    def __init__(self, connection: Connection, route: Route, correlation_id: int, started: float) -> None:
        self.connection = connection
        self.route = route
        self.correlation_id = correlation_id
        self.started = started
        self.slot: Slot | None = None
        """The place of an answer that has to wait; an answer that leaves at once needs none."""

    def reserve(self) -> None:
        """Take the answer's place, so that later answers of the connection queue behind it."""
        if self.slot is None:
            self.slot = self.connection.reserve()

    def refuse(self, code: int) -> None:
        """Answer the whole request with an error. Without a session id, as Kafka does: the client has to
        begin a new session."""
        route = self.route
        route.stats.count_error(code)
        body = encode_error(code, 0, route.version)
        self.connection.send(response_frame(self.correlation_id, body, flexible=route.flexible_response))

    def send(
        self,
        topics: list[TopicData],
        session_id: int,
        endpoints: Sequence[NodeEndpoint] = (),
        leaving: Callable[[float], None] | None = None,
    ) -> None:
        """Send what was read. `leaving` is called with the time at which the answer leaves: at once, or when
        threads have read from the disk what is not in memory."""
        frame = encode_frame(self.correlation_id, topics, session_id, self.route.version, endpoints)
        if isinstance(frame, tuple):
            cold = [frame[1]] if frame[1].is_cold() else []
        else:
            cold = [chunk for chunk in frame if not isinstance(chunk, bytes) and chunk.is_cold()]
        if cold:
            self.reserve()
            self.connection.start_task(self._warm_and_leave(cold, frame, leaving))
        else:
            self._leave(frame, leaving)

    def send_newest(
        self,
        records: bytes,
        session_id: int,
        topic: tuple[str, TopicId | None],
        result: tuple[int, int, int, int],
        *,
        tells_aborted: bool,
    ) -> None:
        """Send records of one partition that are still in memory, and not read: for the parameters see
        `before_sole_records`."""
        slot, self.slot = self.slot, None
        assert slot is not None, "the fetch has waited for these records"
        self.route.stats.record(self.connection.ticks() - self.started)
        before = before_sole_records(
            self.correlation_id, session_id, topic, result, len(records), tells_aborted=tells_aborted
        )
        slot.complete(before + records + BEHIND_SOLE_RECORDS)

    async def _warm_and_leave(
        self, cold: list[Slice], frame: Frame, leaving: Callable[[float], None] | None
    ) -> None:
        # The records of every partition are the log's own slices.
        await warm_all(self.connection.services.log_directories.volume, cast("list[LogSlice]", cold))
        self._leave(frame, leaving)

    def _leave(self, frame: Frame, leaving: Callable[[float], None] | None) -> None:
        connection = self.connection
        now = connection.ticks()
        self.route.stats.record(now - self.started)
        if leaving is not None:
            leaving(now)
        slot, self.slot = self.slot, None
        if isinstance(frame, tuple) and frame[1].size_bytes < SENDFILE_MIN_BYTES:
            # The broker copies a few kilobytes sooner than it makes a system call for them alone.
            before, records, behind = frame
            try:
                copied = before + records.read() + behind
            except StorageError as error:
                connection.abort(str(error))
                return
            if slot is not None:
                slot.complete(copied)
            else:
                connection.send(copied)
            return
        chunks = cast("Sequence[Chunk]", frame)
        if slot is not None:
            slot.complete(chunks)
        else:
            connection.send_chunks(chunks)


async def warm_all(volume: Volume, slices: Sequence[LogSlice]) -> None:
    """Bring records from the disk into the page cache, those of each disk in its own threads."""
    loop = asyncio.get_running_loop()
    by_lane: dict[Executor | None, list[LogSlice]] = {}
    for records in slices:
        assert records.file is not None
        by_lane.setdefault(volume.lane(Waits.READ, records.file.path), []).append(records)
    await asyncio.gather(*(loop.run_in_executor(lane, warm, some) for lane, some in by_lane.items()))


def warm(slices: list[LogSlice]) -> None:
    """Bring records from the disk into the page cache, in a thread: a read on the loop would stop
    everybody."""
    for records in slices:
        try:
            records.warm()
        except StorageError:
            # Sending will meet the same failure, and end the connection that asked for it.
            return
