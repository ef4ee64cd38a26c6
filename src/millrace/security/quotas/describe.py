"""Which quotas DescribeClientQuotas is about. The words of refusals are Kafka's."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millrace.security.quotas.entities import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    TENANT,
    USER,
    InvalidQuota,
    QuotaEntity,
    UnsupportedQuotaEntity,
)
from millrace.security.quotas.precedence import Limits


class MatchType(enum.IntEnum):
    """The numbers are the protocol's."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
    """Any that is there, the default included."""


class Component(NamedTuple):
    """One part of the question, as it comes over the wire."""

    entity_type: str
    match_type: int
    match: str | None


def matching_quotas(
    quotas: Iterable[tuple[QuotaEntity, Limits]], components: Sequence[Component], *, is_strict: bool
) -> list[tuple[QuotaEntity, Limits]]:
    """The quotas of all entities that have every part asked for, and with `is_strict` no other part. Raises
    InvalidQuota, UnsupportedQuotaEntity.

    Tenants are found only by those who ask for them: tools made for Kafka do not know what they are."""
    wanted = _checked(components)
    return [
        (whom, limits)
        for whom, limits in quotas
        if (not is_strict or len(whom.parts) == len(wanted)) and _matches(whom, wanted)
        if TENANT in wanted or not whom.has(TENANT)
    ]


def _checked(components: Sequence[Component]) -> dict[str, Component]:
    wanted: dict[str, Component] = {}
    for component in components:
        kind, match_type, match = component
        if not kind:
            raise InvalidQuota("Invalid empty entity type.")
        if kind in wanted:
            raise InvalidQuota(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise UnsupportedQuotaEntity(f"Unsupported entity type {kind}")
        if match_type not in tuple(MatchType):
            raise InvalidQuota(f"Unknown match type {match_type}")
        if match_type == MatchType.EXACT and match is None:
            raise InvalidQuota("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != MatchType.EXACT and match is not None:
            name = "MATCH_TYPE_DEFAULT" if match_type == MatchType.DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise InvalidQuota(f"Request specified {name}, but also specified a match string.")
        wanted[kind] = component
    if IP in wanted and (USER in wanted or CLIENT_ID in wanted):
        raise InvalidQuota(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return wanted


def _matches(whom: QuotaEntity, wanted: dict[str, Component]) -> bool:
    parts = dict(whom.parts)
    for kind, component in wanted.items():
        if kind not in parts:
            return False
        if component.match_type != MatchType.ANY and parts[kind] != component.match:
            return False
    return True
