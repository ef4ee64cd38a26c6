"""Whom a quota is for: a user, a client id, both, an address, or a tenant; each by name or as the default.

The words of refusals are Kafka's, which tools show to people.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError
from millrace.core.override import override

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TENANT: Final = "tenant"
"""A type that Kafka does not have. Quotas of a tenant are its limits, and are set with the tenant."""

ENTITY_TYPES: Final = (USER, CLIENT_ID, IP, TENANT)


class InvalidQuota(MillraceError):
    """An entity, a key or a value that no quota can have."""


class UnsupportedQuotaEntity(MillraceError):
    """A question about a type of entity that there is not."""


class QuotaEntity(NamedTuple):
    """Whom a quota is for, as pairs of type and name in the order of ENTITY_TYPES. None as a name is the
    default: everybody of the type who has no quota of their own."""

    parts: tuple[tuple[str, str | None], ...]

    @override
    def __str__(self) -> str:
        """As Kafka writes it."""
        parts = (f"{kind}={'null' if name is None else name}" for kind, name in self.parts)
        return f"ClientQuotaEntity(entries={{{', '.join(parts)}}})"

    def has(self, entity_type: str) -> bool:
        return any(each == entity_type for each, _ in self.parts)

    def name_of(self, entity_type: str) -> str | None:
        """The name of this part, or None if it is the default or not there."""
        return next((name for each, name in self.parts if each == entity_type), None)


def entity(
    *, user: str | None = "", client_id: str | None = "", ip: str | None = "", tenant: str | None = ""
) -> QuotaEntity:
    """An entity by its parts: a name, None for the default; what is left out is not part of it."""
    parts = ((USER, user), (CLIENT_ID, client_id), (IP, ip), (TENANT, tenant))
    return QuotaEntity(tuple((kind, name) for kind, name in parts if name != ""))


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity that AlterClientQuotas means by these parts; raises InvalidQuota.

    An address has to be one: Kafka also takes names, and finds out anew on every broker which addresses they
    stand for."""
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in found:
            raise InvalidQuota(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind == TENANT:
            raise InvalidQuota("The quotas of a tenant are its limits: set them with `millrace tenant`")
        if kind not in ENTITY_TYPES:
            raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
        found[kind] = name
    if not found:
        raise InvalidQuota("Invalid empty client quota entity")
    if IP in found:
        if len(found) > 1:
            raise InvalidQuota(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        found[IP] = _checked_ip(found[IP])
    return QuotaEntity(tuple((kind, found[kind]) for kind in ENTITY_TYPES if kind in found))


def _checked_ip(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise InvalidQuota(f"{name} is not a valid IP or resolvable host.") from None
