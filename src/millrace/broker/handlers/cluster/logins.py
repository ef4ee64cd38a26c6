"""SaslHandshake and SaslAuthenticate where no login is under way: that is for `network/login.py`. Where a
session may end, a handshake begins the next login on the same connection (KIP-368)."""

from __future__ import annotations

from typing import Final

from millrace.broker.network.checks import NONE
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.network.requests import Request
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import response_frame
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse


def sasl_handshake(request: Request) -> None:
    connection, route = request.connection, request.route
    asked = schema.request_decoder(ApiKey.SASL_HANDSHAKE, route.version)(
        request.buffer[: request.stop], request.body
    )
    if connection.login is not None:
        connection.login.begin_again(request, asked.mechanism)
        return
    response = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    body = schema.response_encoder(ApiKey.SASL_HANDSHAKE, route.version)(response)
    route.stats.record(connection.ticks() - request.started)
    connection.complete(
        request, response_frame(request.correlation_id, body, flexible=route.flexible_response)
    )


def sasl_authenticate(_ctx: RequestContext, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


# v1 asks for tokens inside SaslAuthenticate.
SASL_HANDSHAKE: Final = Api(
    ApiKey.SASL_HANDSHAKE, versions=(0, 1), handle=sasl_handshake, checks=NONE, direct=True
)
# v1 tells how long the session lasts; v2 is the flexible encoding.
SASL_AUTHENTICATE: Final = Api(
    ApiKey.SASL_AUTHENTICATE, versions=(0, 2), handle=sasl_authenticate, checks=NONE
)
