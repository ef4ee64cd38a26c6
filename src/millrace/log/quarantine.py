"""Damaged byte ranges of a segment: never served, and never a reason to drop what follows.

The bytes stay where they are, so that a replica's copy can be put in their place. The ranges stand beside
the segment in its `.quarantine` file, as JSON.
"""

from __future__ import annotations

import json
import logging
from typing import Final, NamedTuple

from millrace.log.errors import FileMissing
from millrace.log.volume import Volume

logger: Final = logging.getLogger(__name__)

QUARANTINE_SUFFIX: Final = ".quarantine"
_VERSION: Final = 1


class DamagedRange(NamedTuple):
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int
    """The first offset behind the range that is good."""


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
        logger.warning("%s is damaged", path)
        return None


def save_damage(volume: Volume, path: str, damage: tuple[DamagedRange, ...]) -> None:
    if damage:
        document = {"version": _VERSION, "fields": DamagedRange._fields, "ranges": damage}
        volume.write_bytes(path, json.dumps(document, indent=1).encode())
    else:
        volume.remove(path)
