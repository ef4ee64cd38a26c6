"""The quick way of heartbeats: a member says the same every few seconds, and hears the same.

A connection's last heartbeat is kept with its bytes (`network/recognition.py`). When the next one has the
same bytes, the group gets the command that they stand for again, without decoding; and if the group's answer
is the very object that it was last time, the answer's bytes are sent again. The group decides each time:
nothing is assumed about its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millrace.broker.handlers.groups.answers import answered
from millrace.broker.network.context import RequestContext

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.requests import Request
    from millrace.coordinator.runtime import Answer, Outcome

Quick = Callable[["Request"], bool]

BODY_BYTES_MAX: Final = 16_384
"""Longer heartbeats are not kept: every connection could have a frame's worth of memory for good."""


class _Said:
    """The last heartbeat of a connection."""

    __slots__ = ("answer", "body", "command", "outcome", "was_read")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.was_read = False
        self.command: object | None = None
        """None if this heartbeat must go the general way."""
        self.outcome: object | None = None
        self.answer = b""


def _submit(services: Services, command: Any) -> Outcome | Answer:
    return services.groups.submit(command.group_id, command)


def quick_heartbeat(
    command_of: Callable[[RequestContext, Any], object | None],
    respond: Callable[[Outcome], Any],
    submit: Callable[[Services, Any], Outcome | Answer] = _submit,
) -> Quick:
    """The quick way of an API whose commands name a `group_id`.

    `command_of` gives the command that a request stands for, None if it must go the general way; `respond`
    makes the response, and `submit` finds out of what."""

    def handle(request: Request) -> bool:
        connection, route = request.connection, request.route
        said: _Said | None = connection.recognised[route].get(connection)
        if said is None or said.body != request.buffer[request.body : request.stop]:
            if request.stop - request.body > BODY_BYTES_MAX:
                return False
            # It is remembered, but not decoded yet: the first heartbeat after a change may be the only one.
            said = _Said(bytes(request.buffer[request.body : request.stop]))
            connection.recognised.remember(route, connection, said)
            return False
        if not said.was_read:
            _read(said, request, command_of)
        if said.command is None:
            return False
        outcome = submit(connection.services, said.command)
        if outcome is said.outcome:
            connection.answer(request, said.answer)
            return True
        response: Any = answered(outcome, respond)
        if not hasattr(response, "__await__"):
            response = said.answer = route.encode(response)
            said.outcome = outcome
        connection.answer(request, response)
        return True

    return handle


def _read(said: _Said, request: Request, command_of: Callable[[RequestContext, Any], object | None]) -> None:
    connection, route = request.connection, request.route
    decoded = route.decode(request.buffer[: request.stop], request.body)
    context = RequestContext(
        route.version, connection.client_id, connection.endpoint, connection.services, connection.decisions
    )
    said.was_read = True
    said.command = command_of(context, decoded)
