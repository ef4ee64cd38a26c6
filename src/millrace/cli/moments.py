"""Places in a partition as people write them: an offset, the last few messages, or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"-((?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+)")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
FORMS: Final = (
    "beginning, end, an offset (42), the last N messages (-10), a time (2026-01-31T08:00, UTC unless it says "
    "otherwise) or a time ago (-1h30m)"
)


@dataclass(frozen=True, slots=True)
class AtOffset:
    """At this offset of each partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """This many messages before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """At the first message of this time or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtBeginning:
    """At the first message that is still there."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Behind the last message."""


Moment: TypeAlias = AtOffset | BeforeEnd | AtTime | AtBeginning | AtEnd


def parse_moment(text: str, *, now_ms: int) -> Moment:
    """Read one of the FORMS; raises ValueError that names them all."""
    word = text.strip()
    if word in ("beginning", "start", "earliest"):
        return AtBeginning()
    if word in ("end", "latest"):
        return AtEnd()
    if word.isdecimal():
        return AtOffset(int(word))
    if word.startswith("-") and word[1:].isdecimal():
        return BeforeEnd(int(word[1:]))
    duration = _DURATION.fullmatch(word)
    if duration is not None:
        return AtTime(now_ms - parse_duration_ms(duration[1]))
    try:
        return AtTime(parse_timestamp_ms(word))
    except ValueError:
        raise ValueError(f"{text!r} is none of: {FORMS}") from None


def parse_duration_ms(text: str) -> int:
    """`1h30m`, `500ms`, `2d`."""
    return round(sum(float(amount) * _UNITS_MS[unit] for amount, unit in _DURATION_PART.findall(text)))


def parse_timestamp_ms(text: str) -> int:
    """Milliseconds since the Unix epoch from an ISO 8601 time; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO time such as 2026-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_partitions(text: str) -> list[int]:
    """`0,2,5-7`; raises ValueError for anything else."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is not a list of partitions such as 0,2,5-7")
        numbers |= dict.fromkeys(range(int(first), int(last if dash else first) + 1))
    return list(numbers)
