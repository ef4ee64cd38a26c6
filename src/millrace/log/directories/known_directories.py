"""Which data directories a broker has had: a small file in each of them, which tells a disk that is missing
from one that is new.

Without it a disk that was not mounted, which leaves an empty directory in its place, would look like a new
one, and its partitions would be made anew, empty.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing

logger: Final = logging.getLogger(__name__)

KNOWN_DIRECTORIES: Final = "known-directories.json"
_VERSION: Final = 1


class KnownDirectories(NamedTuple):
    """The data directories of a broker as it knew them last, by id."""

    generation: int
    """Counts the changes: a directory that was away for a while has an older one."""
    paths: Mapping[str, str]
    """Where each directory was last, by its id."""


NOTHING_KNOWN: Final = KnownDirectories(0, {})


def read_known(volume: Volume, directories: Iterable[str]) -> KnownDirectories:
    """What the directory with the newest knowledge says."""
    newest = NOTHING_KNOWN
    for directory in directories:
        path = f"{directory}/{KNOWN_DIRECTORIES}"
        try:
            document = json.loads(volume.read_bytes(path))
            found = KnownDirectories(
                int(document["generation"]), {str(id_): str(path) for id_, path in document["paths"].items()}
            )
        except FileMissing:
            continue
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("%s is damaged and counts as missing", path)
            continue
        if found.generation > newest.generation:
            newest = found
    return newest


def write_known(volume: Volume, directory: str, known: KnownDirectories) -> None:
    document = {"version": _VERSION, "generation": known.generation, "paths": dict(known.paths)}
    data = json.dumps(document, indent=1, sort_keys=True).encode()
    path = f"{directory}/{KNOWN_DIRECTORIES}"
    try:
        if volume.read_bytes(path) == data:
            return
    except FileMissing:
        pass
    volume.write_bytes(path, data)
