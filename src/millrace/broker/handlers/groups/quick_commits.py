"""OffsetCommit without objects, decision and future: the way of nearly all commits, see
`groups.quick_commits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.broker.network.connection import Slot
from millrace.broker.wire_errors import error_code
from millrace.wire.framing import response_frame

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.core.errors import MillraceError

_NO_ERROR: Final = b"\0\0"


class CommitSlot(Slot):
    """The place of an answer, and what is needed to make it."""

    __slots__ = ("_correlation_id", "_pieces", "_route", "_started", "_ticks")

    def __init__(
        self, connection: Connection, route: Route, correlation_id: int, started: float, pieces: list[bytes]
    ) -> None:
        # Slot's own, without the call.
        self._connection = connection
        self.response = None
        self._ticks = connection.ticks
        self._route = route
        self._correlation_id = correlation_id
        self._started = started
        self._pieces = pieces

    def settled(self, error: MillraceError | None) -> None:
        """The offsets are stored, or will never be: answer."""
        route = self._route
        route.stats.record(self._ticks() - self._started)
        code = _NO_ERROR if error is None else error_code(error).to_bytes(2, "big", signed=True)
        body = code.join(self._pieces)
        self.complete(response_frame(self._correlation_id, body, flexible=route.flexible_response))


def quick_offset_commit(
    connection: Connection,
    route: Route,
    buffer: memoryview,
    body: int,
    stop: int,
    correlation_id: int,
    started: float,
) -> bool:
    """Commit, if this is a commit like most; False leaves it to `offsets.offset_commit`."""
    commits = connection.services.quick_commits
    commit = commits.read(buffer, body, stop, route.version)
    if commit is None:
        return False
    committer, wanted, pieces = commit
    applied = commits.commit(committer, wanted)
    if applied is None:
        return False
    shard, records, size_bytes = applied
    answer = CommitSlot(connection, route, correlation_id, started, pieces)
    connection.take_place(answer)
    shard.stage(records, size_bytes, answer)
    return True
