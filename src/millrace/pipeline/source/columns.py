"""The columns of the source's rows by name: those of Spark's own Kafka source. Imports no Arrow."""

from __future__ import annotations

from typing import Final

_DDL: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}
COLUMNS: Final = tuple(_DDL)
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name != "headers")


def ddl(columns: tuple[str, ...]) -> str:
    """The schema in Spark's words."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in columns)
