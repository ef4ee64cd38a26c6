"""The one way in which records that were read leave the broker, to consumers and to followers: encoded,
brought into memory where they are on disk only, copied where they are few and sent by `sendfile` where they
are many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, cast

from millrace.broker.network.outgoing import SENDFILE_MIN_BYTES, Chunk
from millrace.broker.network.requests import Request
from millrace.core.lanes import Waits
from millrace.log.errors import StorageError
from millrace.log.partition.log_slice import LogSlice
from millrace.wire.fetch_codec import (
    Slice,
    TopicData,
    encode_error,
    encode_frame,
)
from millrace.wire.framing import NodeEndpoint, response_frame

if TYPE_CHECKING:
    from millrace.log.disk.volume import Volume
    from millrace.security.acls.authorizer import Authorizer


class RecordsAnswer(Request):
    """A Fetch request, of a consumer or of a follower, and the answer to it.

    Whoever serves it calls `reserve` before it waits for anything, and then `refuse` or `send`.
    """

    __slots__ = ()

    is_charged = False

    def reserve(self) -> None:
        """Take the answer's place, so that later answers of the connection queue behind it. An answer that
        leaves at once needs none."""
        if not self.has_place:
            self.connection.take_place(self)

    def refuse(self, code: int) -> None:
        """Answer the whole request with an error. Without a session id, as Kafka does: the client has to
        begin a new session."""
        route = self.route
        route.stats.count_error(code)
        body = encode_error(code, 0, route.version)
        self.complete(response_frame(self.correlation_id, body, flexible=route.flexible_response))

    def send(
        self,
        topics: list[TopicData],
        session_id: int,
        endpoints: Sequence[NodeEndpoint] = (),
        leaving: Callable[[float], None] | None = None,
        *,
        read_again: Callable[[], None],
        is_warm: bool = False,
    ) -> None:
        """Send what was read. `leaving` is called with the time at which the answer leaves: at once, or when
        threads have read from the disk what is not in memory. `is_warm` says that they have. `read_again` is
        called instead if permissions have changed meanwhile."""
        connection = self.connection
        frame = encode_frame(self.correlation_id, topics, session_id, self.route.version, endpoints)
        if not is_warm:
            if isinstance(frame, tuple):
                cold = [frame[1]] if frame[1].is_cold() else []
            else:
                cold = [chunk for chunk in frame if not isinstance(chunk, bytes) and chunk.is_cold()]
            if cold:
                self.reserve()
                authorizer = connection.services.access.authorizer
                connection.start_task(
                    self._warm_and_send(cold, topics, session_id, endpoints, leaving, read_again, authorizer)
                )
                return
        now = connection.ticks()
        self.route.stats.record(now - self.started)
        if leaving is not None:
            leaving(now)
        if isinstance(frame, tuple) and frame[1].size_bytes < SENDFILE_MIN_BYTES:
            # The broker copies a few kilobytes sooner than it makes a system call for them alone.
            before, records, behind = frame
            try:
                copied = before + records.read() + behind
            except StorageError as error:
                connection.abort(str(error))
                return
            connection.complete(self, copied)
        else:
            connection.complete(self, cast("Sequence[Chunk]", frame))

    async def _warm_and_send(
        self,
        cold: list[Slice],
        topics: list[TopicData],
        session_id: int,
        endpoints: Sequence[NodeEndpoint],
        leaving: Callable[[float], None] | None,
        read_again: Callable[[], None],
        authorizer: Authorizer | None,
    ) -> None:
        services = self.connection.services
        # The records of every partition are the log's own slices.
        await warm_all(services.log_directories.volume, cast("list[LogSlice]", cold))
        if services.access.authorizer is not authorizer:
            read_again()
        else:
            self.send(topics, session_id, endpoints, leaving, read_again=read_again, is_warm=True)


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
