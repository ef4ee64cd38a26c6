"""What a client calls itself, and how its requests begin.

Clients give their name with every request, and limits go by it. Nearly always it is the one of the request
before: a connection reads the head of a request with room for just that name and compares it as a whole. Only
another name is looked at, and one whose limits are to be looked up anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.wire.framing import REQUEST_HEAD, REQUEST_HEAD_SIZE, head_reader, skip_client_id

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection


def expect_any_name(connection: Connection) -> None:
    """Know the client by no name: it has sent nothing yet, or less than its name takes."""
    connection.known_name = None
    connection.read_head = head_reader(0)
    connection.head_bytes = REQUEST_HEAD_SIZE


def meet(connection: Connection, buffer: memoryview, start: int, stop: int) -> bool:
    """Know the client by the name in this request from now on, and look up what limits it. False if the
    connection was ended over that. Raises MalformedRequest."""
    *_, size = REQUEST_HEAD.unpack_from(buffer, start)
    at = start + REQUEST_HEAD_SIZE
    body = skip_client_id(buffer, at, size, stop, flexible=False)
    client_id = bytes(buffer[at:body])
    connection.client_id = None if size < 0 else client_id.decode(errors="replace")
    connection.read_head = head_reader(len(client_id))
    connection.head_bytes = body - start
    connection.known_name = bytes(buffer[at - 2 : body])
    return connection.services.throttling.knows(connection, client_id)
