"""Filters that Spark hands to the source: topic, partition, offset and timestamp, kept as bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from millrace.core.ids import TopicPartition

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What rows must satisfy. Bounds of offsets are [from, to), of timestamps [from, to] in microseconds."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_from: int = 0
    partition_to: int = 2**31
    offset_from: int = 0
    offset_to: int = 2**63 - 1
    timestamp_from_us: int | None = None
    timestamp_to_us: int | None = None

    @property
    def limits_time(self) -> bool:
        return self.timestamp_from_us is not None or self.timestamp_to_us is not None

    def allows(self, partition: TopicPartition) -> bool:
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and self.partition_from <= partition.partition < self.partition_to
        )


def push(bounds: Bounds, condition: Filter) -> Bounds | None:
    """The bounds with one more condition; None where Spark must look at the rows itself."""
    match condition:
        case IsNotNull((name,)) if name in _NEVER_NULL:
            return bounds
        case EqualTo(("topic",), str(value)):
            return _topics(bounds, {value})
        case In(("topic",), values) if all(isinstance(value, str) for value in values):
            return _topics(bounds, set(values))
        case In(("partition",), values) if all(_is_int(value) for value in values):
            return _partitions(bounds, set(values))
        case EqualTo((name,), value):
            return _between(bounds, name, value, value)
        case GreaterThanOrEqual((name,), value):
            return _between(bounds, name, value, None)
        case GreaterThan((name,), value):
            return _between(bounds, name, value, None, open_from=True)
        case LessThanOrEqual((name,), value):
            return _between(bounds, name, None, value)
        case LessThan((name,), value):
            return _between(bounds, name, None, value, open_to=True)
        case _:
            return None


def _topics(bounds: Bounds, names: set[str]) -> Bounds:
    kept = frozenset(names) if bounds.topics is None else bounds.topics & names
    return replace(bounds, topics=kept)


def _partitions(bounds: Bounds, numbers: set[int]) -> Bounds:
    kept = frozenset(numbers) if bounds.partitions is None else bounds.partitions & numbers
    return replace(bounds, partitions=kept)


def _between(
    bounds: Bounds, name: str, low: Any, high: Any, *, open_from: bool = False, open_to: bool = False
) -> Bounds | None:
    if name == "timestamp":
        low, high = _microseconds(low), _microseconds(high)
    if not all(value is None or _is_int(value) for value in (low, high)) or (low is None and high is None):
        return None
    least = None if low is None else low + open_from
    most = None if high is None else high - open_to
    match name:
        case "partition":
            return replace(
                bounds,
                partition_from=max(bounds.partition_from, least or 0),
                partition_to=bounds.partition_to if most is None else min(bounds.partition_to, most + 1),
            )
        case "offset":
            return replace(
                bounds,
                offset_from=max(bounds.offset_from, least or 0),
                offset_to=bounds.offset_to if most is None else min(bounds.offset_to, most + 1),
            )
        case "timestamp":
            lows = [value for value in (bounds.timestamp_from_us, least) if value is not None]
            highs = [value for value in (bounds.timestamp_to_us, most) if value is not None]
            return replace(
                bounds,
                timestamp_from_us=max(lows, default=None),
                timestamp_to_us=min(highs, default=None),
            )
        case _:
            return None


def _is_int(value: object) -> bool:
    return type(value) is int


def _microseconds(value: Any) -> Any:
    """Whole microseconds since 1970 of a moment; anything that has no time zone is left as it is."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value
