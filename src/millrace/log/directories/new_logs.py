"""The disk's part of making a log. A thread does it, knows only what it is told here, and changes nothing
that the loop sees: the loop puts the log into the directory's table afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.log.disk.volume import Volume
from millrace.log.errors import StorageError
from millrace.log.segments import checkpoints

logger: Final = logging.getLogger(__name__)

_OF_A_NEW_LOG: Final = (checkpoints.PARTITION_METADATA, checkpoints.PARTITION_METADATA + ".tmp")


class NewLog(NamedTuple):
    """A directory that a thread is to make for a new log."""

    path: str
    topic_id: TopicId
    aside: str
    """Where to put a directory that has this log's name already, and files in it."""


def make_new_logs(volume: Volume, wanted: Sequence[NewLog]) -> list[StorageError | None]:
    """Make the directories of new logs; returns what went wrong with each, or None."""
    outcomes: list[StorageError | None] = []
    for new in wanted:
        try:
            make_new_log(volume, new)
        except StorageError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def make_new_log(volume: Volume, new: NewLog) -> None:
    """Make the directory of a new log, with the topic's id in it. May be repeated after a failure."""
    if is_in_the_way(volume, new.path):
        # Nobody knows whose records these are. After a restart they would count as the new topic's.
        volume.rename(new.path, new.aside)
        logger.warning("%s was in the way of a new log: it is kept as %s", new.path, new.aside)
    volume.make_directory(new.path)
    checkpoints.write_partition_metadata(volume, new.path, new.topic_id, durable=False)


def is_in_the_way(volume: Volume, path: str) -> bool:
    """Whether there is more under this name than an attempt to make a new log leaves."""
    return volume.exists(path) and any(
        entry.name not in _OF_A_NEW_LOG for entry in volume.list_directory(path)
    )
