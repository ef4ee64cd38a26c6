"""SaslHandshake and SaslAuthenticate where nobody is asked to log in: they make no sense there."""

from __future__ import annotations

from millrace.broker.handlers.cluster.logins import SASL_AUTHENTICATE, SASL_HANDSHAKE
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millrace.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.network.client import Client


def test_both_are_refused_and_the_connection_stays(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        for version in range(SASL_HANDSHAKE.versions[1] + 1):
            answer = await client.ask(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism="PLAIN"))
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        for version in range(SASL_AUTHENTICATE.versions[1] + 1):
            answer = await client.ask(
                ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=b"\0a\0b")
            )
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert "after successful authentication" in answer.error_message
        assert not client.transport.is_aborted
        assert client.connection.decisions.identity.mechanism is None

    broker.run(work())
