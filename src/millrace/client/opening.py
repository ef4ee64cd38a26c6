"""What comes first on a connection, as questions that either transport can ask: versions, then a login. And
what comes again on a connection that lasts: the login, before the broker ends the session (KIP-368)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from millrace.client.errors import BrokerRefused, LoginFailed, UnsupportedBroker, refuse
from millrace.client.questions import Question, Questions, Work
from millrace.client.sasl import SaslClient, sasl_client
from millrace.client.security import SecurityOptions
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millrace.wire.messages.sasl_handshake import SaslHandshakeRequest

RENEWED_AFTER: Final = 0.85
"""The part of a session after which its login is repeated: where Kafka's clients begin, too."""


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


@dataclass(frozen=True, slots=True)
class Login:
    """A login that has been made, and can be made again."""

    address: str
    security: SecurityOptions
    session_ms: int
    """For how long the broker counts it; 0 for as long as the connection lasts."""

    @property
    def renewed_after_s(self) -> float | None:
        """After how long it is to be repeated; None where it need not be."""
        return RENEWED_AFTER * self.session_ms / 1000 if self.session_ms > 0 else None

    def again(self) -> Questions[Login]:
        return log_in(self.address, self.security)


class Opened(NamedTuple):
    """What is known of a connection once it is open."""

    versions: ServedVersions
    login: Login | None
    """None where nobody had to log in."""


def ask_versions(address: str, software: str) -> Questions[ServedVersions]:
    message = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    response = yield Question(ApiKey.API_VERSIONS, 3, message)
    refuse(response.error_code, f"versions of {address}")
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    return ServedVersions(address, ranges)


def log_in(address: str, security: SecurityOptions) -> Questions[Login]:
    """Raises LoginFailed or BrokerRefused, without any secret in the message."""
    client = sasl_client(security)
    response = yield Question(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=client.mechanism))
    if response.error_code:
        offered = ", ".join(response.mechanisms) or "none"
        raise LoginFailed(f"{address} does not offer {client.mechanism}; it offers: {offered}")
    message = yield from _off_the_loop(client, client.first)
    while True:
        request = SaslAuthenticateRequest(auth_bytes=message or b"")
        response = yield Question(ApiKey.SASL_AUTHENTICATE, 2, request)
        if response.error_code:
            detail = response.error_message or "the user or the password is wrong"
            raise BrokerRefused(response.error_code, f"login at {address}: {detail}")
        message = yield from _off_the_loop(client, partial(client.answer, response.auth_bytes))
        if message is None:
            return Login(address, security, response.session_lifetime_ms)


def _off_the_loop(
    client: SaslClient, call: Callable[[], bytes | None]
) -> Generator[Work, bytes | None, bytes | None]:
    return call() if client.is_quick else (yield Work(call))


def open_with(address: str, software: str, security: SecurityOptions) -> Questions[Opened]:
    """All that comes before the first request of a user."""
    versions = yield from ask_versions(address, software)
    if not security.uses_sasl:
        return Opened(versions, None)
    return Opened(versions, (yield from log_in(address, security)))
