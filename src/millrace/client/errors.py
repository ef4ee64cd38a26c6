"""What can be wrong with a broker that this process is a client of.

Whatever ends a connection names its other end as host:port.
"""

from __future__ import annotations

from millrace.core.errors import MillraceError
from millrace.wire.error_codes import ErrorCode


class ClientError(MillraceError):
    """A client cannot do what was asked; the message says why and, where it helps, what is allowed."""


class InvalidOption(ClientError):
    """An option that is missing, unknown, contradicts another or has a bad value."""


class ConnectionFailed(ClientError):
    """No broker answers, or a connection ended before the answer came: worth another try.

    What was asked may have been done or not."""


class NotReached(ConnectionFailed):
    """No connection came about."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no broker answers at {address}: {reason}")
        self.address = address


class NobodyListens(NotReached):
    """The machine itself says that its port is closed."""


class ConnectionClosed(ConnectionFailed):
    """The connection ended, by the other end or because the network lost it."""

    def __init__(self, address: str, reason: str | None = None) -> None:
        super().__init__(
            f"{address} closed the connection"
            if reason is None
            else f"the connection to {address} failed: {reason}"
        )
        self.address = address


class TimedOut(ConnectionFailed):
    """Connected, and no answer came in time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(f"{address} gave no answer within {timeout_s:g} s")
        self.address = address


class InvalidAnswer(ConnectionFailed):
    """What came is no answer to what was asked. `what` goes on from the address: "sent ..."."""

    def __init__(self, address: str, what: str) -> None:
        super().__init__(f"{address} {what}")
        self.address = address


class NotTrusted(ClientError):
    """The other end's certificate does not prove who it is: another try would find the same."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the certificate of {address} is not trusted: {reason}; "
            "ssl.ca.location names the authorities that are"
        )
        self.address = address


class LoginFailed(ClientError):
    """The two ends do not agree on a way to log in, or the broker did not prove itself."""


class BrokerRefused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, subject: str) -> None:
        try:
            error = ErrorCode(code)
        except ValueError:
            super().__init__(f"{subject}: unknown error code {code}")
            self.retriable = False
        else:
            super().__init__(f"{subject}: {error.message} ({error.name})")
            self.retriable = error.retriable
        self.code = code


class UnsupportedBroker(ClientError):
    """The broker does not serve an API or version that the client needs."""


def refuse(code: int, subject: str) -> None:
    """BrokerRefused for any code but that of success."""
    if code:
        raise BrokerRefused(code, subject)
