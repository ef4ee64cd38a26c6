"""What can be limited, and which values AlterClientQuotas accepts. The words of refusals are Kafka's."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.security.quotas.entities import IP, InvalidQuota, QuotaEntity

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_FRACTION_MAX: Final = 1e-6
"""The largest fraction that counts as none: a double may lose so much of a whole number."""


class ValueType(enum.Enum):
    """The number that a key takes, with the largest and Kafka's words for it."""

    DOUBLE = (math.inf, "")
    INT = (2**31 - 1, "an INT")
    LONG = (2**63 - 1, "a LONG")


class Alteration(NamedTuple):
    """One change of one limit; None takes it away."""

    key: str
    value: float | None


KEYS: Final[Mapping[str, ValueType]] = {
    PRODUCER_BYTE_RATE: ValueType.LONG,
    CONSUMER_BYTE_RATE: ValueType.LONG,
    REQUEST_PERCENTAGE: ValueType.DOUBLE,
    CONTROLLER_MUTATION_RATE: ValueType.DOUBLE,
}
"""The limits of users, client ids and tenants."""
IP_KEYS: Final[Mapping[str, ValueType]] = {CONNECTION_CREATION_RATE: ValueType.INT}


def altered_limits(
    entity: QuotaEntity, present: Mapping[str, float], alterations: Iterable[Alteration]
) -> dict[str, float]:
    """All limits of an entity after the alterations; raises InvalidQuota, and then none of them counts."""
    allowed = IP_KEYS if entity.has(IP) else KEYS
    limits = dict(present)
    seen: dict[str, None] = {}
    for key, value in alterations:
        if key in seen:
            raise InvalidQuota(f"Duplicate quota key {key} not updating quota for this entity")
        seen[key] = None
        if value is None:
            limits.pop(key, None)
        else:
            _check(allowed, key, value)
            limits[key] = value
    return limits


def _check(allowed: Mapping[str, ValueType], key: str, value: float) -> None:
    kind = allowed.get(key)
    if kind is None:
        raise InvalidQuota(f"Invalid configuration key {key}")
    # Not a number is not greater either.
    if not value > 0.0:
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    largest, words = kind.value
    if value > largest:
        raise InvalidQuota(f"Proposed value for {key} is too large for {words}.")
    if kind is not ValueType.DOUBLE and value % 1.0 > _FRACTION_MAX:
        raise InvalidQuota(f"{key} cannot be a fractional value.")
