"""A request while it is handled, and the place of its answer in the order of a connection's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from millrace.broker.network.outgoing import Chunk

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route

NO_BYTES: Final = memoryview(b"")
SLOTS_MAX: Final = 1_000
"""Requests of one connection that may wait at once; then reading stops."""
SLOTS_RESUME: Final = SLOTS_MAX // 2
"""Reading goes on when no more than this wait, and not after each answer: every time that reading stops, what
was read already has to be moved in memory."""


class Slot:
    """A response's place in the queue, if it takes one before the response is known."""

    __slots__ = ("buffer", "connection", "has_place", "is_over", "response")

    is_charged: ClassVar[bool] = False
    """Whether quotas are to look at each of its kind; at others they look when a lease has run out."""
    is_produce: ClassVar[bool] = False
    buffer: memoryview
    """Holds the request for as long as it is being handled."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.response: bytes | Sequence[Chunk] | None = None
        """Known, and waits for earlier ones."""
        self.has_place = False
        self.is_over = False
        """Whether it was answered in its place, or nobody waits for the answer any more."""

    def complete(self, response: bytes | Sequence[Chunk]) -> None:
        """Answer with a whole frame: see `Connection.complete`."""
        self.connection.complete(self, response)

    def discard(self) -> None:
        """Nobody waits for the answer any more."""
        self.is_over = True


class Request(Slot):
    """One request, as direct and quick handlers are given it.

    A handler that answers before it returns needs no place in the order of responses; then the object serves
    the connection's next request as well. One that answers later takes a place (`Connection.take_place`), and
    the object is its own from then on. The bytes are gone by then: the buffer is read into again."""

    __slots__ = ("body", "correlation_id", "route", "started", "stop")

    is_charged = True

    # Set by the connection for every request.
    body: int
    """Where it begins in the buffer, behind its header."""
    stop: int
    correlation_id: int
    started: float
    """When it was read, in ticks."""

    def __init__(self, connection: Connection, route: Route) -> None:
        # What the base class does, without the call: there is one of these for every request that waits.
        self.connection = connection
        self.response = None
        self.is_over = False
        self.has_place = False
        self.route = route
