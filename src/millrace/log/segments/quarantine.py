"""Damaged byte ranges of a segment: never served, and never a reason to drop what follows.

The bytes stay where they are, so that a replica's copy can be put in their place. The ranges stand beside
the segment in its `.quarantine` file, as JSON.

A closed segment can have lost its end, all it held, or a whole segment that followed. Then the range lies at
the end of the file, has no bytes (or torn ones that are left), and its offsets reach up to the next segment.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing

logger: Final = logging.getLogger(__name__)

QUARANTINE_SUFFIX: Final = ".quarantine"
_VERSION: Final = 1


class DamagedRange(NamedTuple):
    """Bytes and offsets of a segment that are not served."""

    position: int
    size_bytes: int
    """0 where the end of a segment is missing."""
    first_offset: int
    next_offset: int
    """The first offset behind the range that is good."""


def bytes_to_skip(damage: Sequence[DamagedRange]) -> dict[int, int]:
    """How many bytes a reader has to skip, by position. Ranges without bytes are left out: a reader who skips
    nothing would never move on."""
    return {damaged.position: damaged.size_bytes for damaged in damage if damaged.size_bytes}


def behind_damage(damage: Sequence[DamagedRange], position: int) -> tuple[int, bool]:
    """The next position outside of damaged ranges, and whether it differs from `position`: an index may name
    a batch inside a range."""
    for damaged in damage:
        if damaged.position <= position < damaged.position + damaged.size_bytes:
            return damaged.position + damaged.size_bytes, True
    return position, False


def load_damage(volume: Volume, path: str) -> tuple[DamagedRange, ...] | None:
    """What is known to be damaged, or None if the file is missing or damaged itself."""
    try:
        document = json.loads(volume.read_bytes(path))
        if document["version"] != _VERSION:
            return None
        return tuple(DamagedRange(*(int(value) for value in row)) for row in document["ranges"])
    except FileMissing:
        return None
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is damaged and counts as missing", path)
        return None


def fitted(
    damage: tuple[DamagedRange, ...], *, size_bytes: int, upper_offset: int | None
) -> tuple[DamagedRange, ...]:
    """Stored ranges, fitted to the segment as it is now; `upper_offset` is where the next segment begins.

    A crash may have come while a lost end was put back: whatever lies there was not confirmed, so the range
    covers it. No range without bytes is left before the end, because a reader could not get past it."""
    found = []
    for damaged in damage:
        if upper_offset is not None and damaged.next_offset >= upper_offset:
            if damaged.first_offset < upper_offset:
                rest_bytes = max(size_bytes - damaged.position, 0)
                found.append(damaged._replace(size_bytes=rest_bytes, next_offset=upper_offset))
        elif damaged.size_bytes > 0:
            found.append(damaged)
    return tuple(found)


def save_damage(volume: Volume, path: str, damage: tuple[DamagedRange, ...]) -> None:
    if damage:
        document = {"version": _VERSION, "fields": DamagedRange._fields, "ranges": damage}
        volume.write_bytes(path, json.dumps(document, indent=1).encode())
    else:
        volume.remove(path)
