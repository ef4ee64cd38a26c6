"""How a setting without effect becomes one of the table: in one line, with a reason for many."""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    Importance,
    Range,
    Setting,
    Synonym,
    UpdateMode,
    Validator,
    Value,
)

BOOLEAN: Final = ConfigType.BOOLEAN
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
SHORT: Final = ConfigType.SHORT
STRING: Final = ConfigType.STRING
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE
ONLY_FALSE: Final = Check(lambda value: value is False, "false")
"""For settings that may be set to off, and cannot be turned on here."""


class Row(NamedTuple):
    """One setting of Kafka with its type, default and range."""

    name: str
    type: ConfigType
    default: Value
    low: float | None = None
    high: float | None = None
    valid: Validator | None = None
    update: UpdateMode = UpdateMode.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()


def because(reason: str, *rows: Row) -> tuple[Setting, ...]:
    """Settings that have no effect, all for the same reason."""
    return tuple(
        Setting(
            name=row.name,
            type=row.type,
            default=row.default,
            doc=f"Accepted, without effect: {reason}.",
            valid=row.valid if row.low is None else Range(row.low, row.high),
            importance=Importance.LOW,
            update=row.update,
            synonyms=row.synonyms,
            without_effect=reason,
        )
        for row in rows
    )
