"""Why a connection has to end because of what it has sent. Each reason is counted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from millrace.broker.network.first_bytes import hint_from
from millrace.broker.network.outgoing import OutgoingFailed
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import REQUEST_HEAD, REQUEST_HEAD_SIZE

if TYPE_CHECKING:
    from millrace.broker.network.server import Server

log: Final = logging.getLogger(__name__)


def frame_refusal(server: Server, received: memoryview, size: int) -> str | None:
    """Why a frame of that size, of which so much has come, ends the connection; None if it does not. Its
    header decides, before its body is waited for."""
    if not REQUEST_HEAD_SIZE <= size <= server.frame_bytes_max:
        server.count_refused("frame_size")
        allowed = f"allowed are {REQUEST_HEAD_SIZE} to {server.frame_bytes_max} bytes"
        return f"a frame of {size} bytes: {hint_from(bytes(received[:4])) or allowed}"
    if len(received) >= 4 + REQUEST_HEAD_SIZE:
        key, version, _, _ = REQUEST_HEAD.unpack_from(received, 4)
        if not server.is_servable(key, version):
            return api_refusal(server, key, version)
    return None


def api_refusal(server: Server, key: int, version: int) -> str:
    """Why a request of this kind ends the connection."""
    server.count_refused("api")
    return f"api key {key} version {version} is not served here"


def failure(server: Server, error: Exception, peer_host: str) -> str:
    """Why a request that could not be handled ends the connection. What is not expected is logged."""
    if isinstance(error, MalformedRequest):
        server.count_refused("malformed")
        return f"malformed request: {error}"
    if isinstance(error, OutgoingFailed):
        return str(error)
    log.error("a request could not be handled", exc_info=error, extra={"peer": peer_host})
    server.count_refused("failed")
    return "internal error"
