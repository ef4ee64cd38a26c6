"""What a mechanism answers to a client's token, and what every mechanism has to offer.

An exchange is the server's side of one login. It is fed with tokens in turn; each brings a challenge, the end
of the login, or work that is too dear for the loop: that is run in a thread, and its result is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from millrace.security.principals import Identity


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange goes on; this is sent to the client."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Success:
    """The client is who it says. The last token of the mechanism goes with that answer."""

    identity: Identity
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The login has failed."""

    reason: str
    """For the log: it may tell what was wrong, but holds nothing that the client meant as a secret."""
    told: str | None = None
    """What the client is told. None stands for the sentence that tells nothing."""


Answer: TypeAlias = Challenge | Success | Failure


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be computed first."""

    run: Callable[[], Any] = field(repr=False)
    """For a thread. It never raises for anything that a client sent."""
    then: Callable[[Any], Answer] = field(repr=False)
    """For the loop, with the result."""


Step: TypeAlias = Answer | Work


class Exchange(Protocol):
    """The server's side of one login by one mechanism."""

    claimed: str
    """Who the client says to be, for the audit of a login that fails; empty while it has not said."""

    def respond(self, token: bytes, now_ms: int) -> Step:
        """Take the client's next token. After a success or a failure there is none."""
