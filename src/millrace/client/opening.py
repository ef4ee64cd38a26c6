"""What comes first on a connection, as questions that either transport can ask: versions, then a login."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millrace.client.errors import BrokerRefused, LoginFailed, UnsupportedBroker, refuse
from millrace.client.security import SaslClient, SecurityOptions
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millrace.wire.messages.sasl_handshake import SaslHandshakeRequest

T = TypeVar("T")


class Question(NamedTuple):
    """One request, to be answered before the next."""

    api_key: int
    version: int
    message: Any


Questions: TypeAlias = Generator[Question, Any, T]
"""Yields one after the other, is sent the answer to each, and returns what they are asked for."""


class ServedVersions:
    """The versions that one broker serves of each API."""

    def __init__(self, address: str, ranges: Mapping[int, tuple[int, int]]) -> None:
        self._address = address
        self._ranges = dict(ranges)

    def newest(self, api_key: int, at_least: int, at_most: int) -> int:
        """The newest version within bounds; UnsupportedBroker if there is none."""
        served = self._ranges.get(api_key)
        if served is None or served[1] < at_least or served[0] > at_most:
            found = "does not serve it" if served is None else f"serves versions {served[0]} to {served[1]}"
            raise UnsupportedBroker(
                f"{schema.api_name(api_key)} is needed in a version of {at_least} to {at_most}; "
                f"{self._address} {found}"
            )
        return min(at_most, served[1])


def ask_versions(address: str, software: str) -> Questions[ServedVersions]:
    message = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    response = yield Question(ApiKey.API_VERSIONS, 3, message)
    refuse(response.error_code, f"versions of {address}")
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    return ServedVersions(address, ranges)


def log_in(address: str, security: SecurityOptions) -> Questions[None]:
    """Raises LoginFailed or BrokerRefused, without any secret in the message."""
    client = SaslClient(security)
    response = yield Question(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=client.mechanism))
    if response.error_code:
        offered = ", ".join(response.mechanisms) or "none"
        raise LoginFailed(f"{address} does not offer {client.mechanism}; it offers: {offered}")
    message: bytes | None = client.first()
    while message is not None:
        request = SaslAuthenticateRequest(auth_bytes=message)
        response = yield Question(ApiKey.SASL_AUTHENTICATE, 2, request)
        if response.error_code:
            detail = response.error_message or "the user or the password is wrong"
            raise BrokerRefused(response.error_code, f"login at {address}: {detail}")
        message = client.answer(response.auth_bytes)


def open_with(address: str, software: str, security: SecurityOptions) -> Questions[ServedVersions]:
    """All that comes before the first request of a user."""
    versions = yield from ask_versions(address, software)
    if security.uses_sasl:
        yield from log_in(address, security)
    return versions
