"""The rows of the source: the columns of Spark's own Kafka source, as an Arrow schema and as Spark's DDL."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))

COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
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
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMN_TYPES if name != "headers")


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])


def ddl(columns: tuple[str, ...]) -> str:
    """The schema in Spark's words."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in columns)
