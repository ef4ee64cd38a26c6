"""What a handler is given: who asks, over which connection, and the services that can answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.throttling import ClientThrottle
    from millrace.security.acls.decisions import Decisions


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The two ends of a connection. `local_*` is the address that the client dialled."""

    local_host: str
    local_port: int
    peer_host: str
    peer_port: int
    listener: str


@dataclass(slots=True)
class RequestContext:
    """What a general handler knows of a request beside its content."""

    api_version: int
    client_id: str | None
    endpoint: Endpoint
    services: Services
    decisions: Decisions
    """Who asks, and what they may do now."""
    throttle: ClientThrottle | None = None
    """What they are charged with; None if nothing limits them."""
