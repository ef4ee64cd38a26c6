"""Who somebody is: principals as Kafka writes them, and what a connection was authenticated as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError
from millrace.core.override import override

USER: Final = "User"
"""The type of everybody who logs in."""
GROUP: Final = "Group"
"""The type of a group that a claim of a token or a certificate names."""
ROLE: Final = "Role"
"""The type of a role, which has permissions and is given to users and groups."""
WILDCARD_NAME: Final = "*"
"""In permissions `User:*` stands for everybody."""


class InvalidPrincipal(MillraceError):
    """A text that does not name a principal."""

    def __init__(self, text: str) -> None:
        super().__init__(f"expected a string in format principalType:principalName but got {text}")


class Principal(NamedTuple):
    """A name with its type. A tuple, since it is compared and looked up for every request.

    Type and name are taken as they come, in any case and with any characters, as Kafka takes them."""

    kind: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Everybody on a listener that asks for no proof."""


def parse_principal(text: str) -> Principal:
    """The inverse of `str`: all up to the first colon is the type. Raises InvalidPrincipal without one."""
    kind, colon, name = text.partition(":")
    if not colon:
        raise InvalidPrincipal(text)
    return Principal(kind, name)


def user(name: str) -> Principal:
    """The principal of a user of this name."""
    return Principal(USER, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one connection was authenticated as. It holds no secret: it may be logged."""

    principal: Principal
    mechanism: str | None = None
    """The SASL mechanism that proved it; None where there was none: plain text or a certificate."""
    groups: tuple[str, ...] = ()
    """Names of the groups that the credential itself told: in a claim of a token, or a certificate's OU."""
    is_token: bool = False
    """Whether a delegation token proved it. Such a session may not ask for further tokens."""
    expires_ms: int | None = None
    """When the credential ends, in wall-clock milliseconds; None if it has no end."""


NOBODY: Final = Identity(principal=ANONYMOUS)
"""The identity of connections that were not asked for one."""
