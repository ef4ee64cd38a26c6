"""Bounds of records by time or offset, as people write them, and fair shares of what comes next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final, TypeAlias

from millrace.pipeline.lake.errors import ArchiveError

FORMS: Final = (
    "beginning, end, a time (2026-01-31T08:00, UTC unless it says otherwise), an offset (42), or offsets of"
    " single partitions (0:42,1:17; the others are left out)"
)
DAY_MS: Final = 86_400_000
LAST_DAY: Final = 2_932_896
"""9999-12-31, in days since 1970: Spark cannot name later ones, which only broken clocks know."""

_OFFSETS: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")


@dataclass(frozen=True, slots=True)
class Unbounded:
    """No bound: from the beginning, or to the end."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """At the first record of this time or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """At the same offset of every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """At these offsets of these partitions; the others are left out."""

    offsets: tuple[tuple[int, int], ...]


Bound: TypeAlias = Unbounded | AtTime | AtOffset | AtOffsets


@dataclass(frozen=True, slots=True)
class Selection:
    """Records from `start` (with it) to `end` (without it)."""

    start: Bound = Unbounded()
    end: Bound = Unbounded()


def parse_selection(start: str, end: str) -> Selection:
    """Read both bounds; raises ArchiveError that says what is allowed."""
    selection = Selection(_parse(start, unbounded="beginning"), _parse(end, unbounded="end"))
    match selection:
        case Selection(AtTime(begin), AtTime(until)) | Selection(AtOffset(begin), AtOffset(until)) if (
            begin >= until
        ):
            raise ArchiveError(
                f"nothing lies between {start!r} and {end!r}: the first must be before the second"
            )
        case _:
            return selection


def _parse(text: str, *, unbounded: str) -> Bound:
    word = text.strip()
    if word == unbounded:
        return Unbounded()
    if word.isdecimal():
        return AtOffset(int(word))
    if _OFFSETS.fullmatch(word):
        pairs = [tuple(map(int, pair.split(":"))) for pair in word.split(",")]
        return AtOffsets(tuple((pair[0], pair[1]) for pair in pairs))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ArchiveError(f"{text!r} is none of: {FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return AtTime(round(moment.timestamp() * 1000))


def day_of(timestamp_ms: int) -> date:
    """The folder of a record: its day in UTC, within what a folder can be named."""
    day = min(max(timestamp_ms // DAY_MS, 0), LAST_DAY)
    return date.fromordinal(date(1970, 1, 1).toordinal() + day)


def next_ranges(
    positions: Mapping[int, int], ends: Mapping[int, int], limit: int
) -> dict[int, tuple[int, int]]:
    """Up to `limit` offsets behind the positions, each partition in proportion to what it holds."""
    waiting = {
        partition: end - positions.get(partition, 0)
        for partition, end in sorted(ends.items())
        if end > positions.get(partition, 0)
    }
    total = sum(waiting.values())
    ranges: dict[int, tuple[int, int]] = {}
    for partition, count in waiting.items():
        # At least one: a partition with few records beside a huge one must not wait for the end.
        share = count if total <= limit else max(1, count * limit // total)
        start = positions.get(partition, 0)
        ranges[partition] = (start, start + share)
    return ranges
