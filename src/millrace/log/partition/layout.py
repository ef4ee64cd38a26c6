"""The names of a data directory: which partition a directory holds, and which segments lie in it."""

from __future__ import annotations

import re
from typing import Final

from millrace.core.ids import TopicPartition
from millrace.log.disk.volume import Volume
from millrace.log.partition.segment_swap import finish_swaps
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, fitted, load_damage
from millrace.log.segments.segment import LOG_SUFFIX, Segment, segment_path

DELETE_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"
FUTURE_DIRECTORY_SUFFIX: Final = "-future"
"""For a copy that is being made of a log in another data directory. Kafka uses the same suffix."""
MOVED_DIRECTORY_SUFFIX: Final = "-moved"
"""For the log that such a copy has replaced, until its files are deleted."""
_OTHER_DIRECTORY_SUFFIXES: Final = (
    DELETE_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    MOVED_DIRECTORY_SUFFIX,
)
_KAFKAS_OWN_METADATA: Final = "__cluster_metadata"
"""Kafka's controllers keep their log beside the topics'. We leave it alone: Kafka may come back."""
_UNFINISHED: Final = (".cleaned", ".swap", ".deleted")
_NAME_LENGTH_MAX: Final = 255
_PARTITION_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)\Z")
_UNIQUE_NAME: Final = re.compile(r"(?P<name>.+)\.(?P<unique>[0-9a-f]+)\Z")


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory is for, or None if it is something else."""
    match = _PARTITION_NAME.match(name)
    if match is None or name.endswith(_OTHER_DIRECTORY_SUFFIXES):
        return None
    if match["topic"] == _KAFKAS_OWN_METADATA:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def deleted_directory_name(topic_partition: TopicPartition, unique: str) -> str:
    """The name under which a partition's directory waits for its removal; nothing reads it any more."""
    suffix = f"-{topic_partition.partition}.{unique}{DELETE_DIRECTORY_SUFFIX}"
    return topic_partition.topic[: _NAME_LENGTH_MAX - len(suffix)] + suffix


def stray_directory_name(topic_partition: TopicPartition, unique: str) -> str:
    """The name under which a directory that belongs to no topic is kept; nothing reads or removes it."""
    suffix = f"-{topic_partition.partition}.{unique}{STRAY_DIRECTORY_SUFFIX}"
    return topic_partition.topic[: _NAME_LENGTH_MAX - len(suffix)] + suffix


def unique_directory_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str | None:
    """The name for a log on its way to another data directory; None if the topic's name is too long."""
    name = f"{topic_partition}.{unique}{suffix}"
    return name if len(name) <= _NAME_LENGTH_MAX else None


def parse_unique_name(name: str, suffix: str) -> tuple[TopicPartition, str] | None:
    """The partition and the unique part of such a name, or None if it is something else."""
    match = _UNIQUE_NAME.match(name.removesuffix(suffix)) if name.endswith(suffix) else None
    topic_partition = None if match is None else parse_directory_name(match["name"])
    return None if match is None or topic_partition is None else (topic_partition, match["unique"])


def find_segments(volume: Volume, directory: str, *, first_offset: int) -> list[Segment]:
    """The segments on disk, oldest first; an empty one at `first_offset` if there is none."""
    entries = volume.list_directory(directory)
    if any(entry.name.endswith(_UNFINISHED) for entry in entries):
        finish_swaps(volume, directory)
        entries = volume.list_directory(directory)
    segments = []
    damaged = set()
    for entry in entries:
        stem, _, suffix = entry.name.partition(".")
        if not stem.isdigit():
            continue
        if f".{suffix}" == LOG_SUFFIX:
            segments.append(Segment(volume, directory, int(stem), entry.size_bytes))
        elif f".{suffix}" == QUARANTINE_SUFFIX:
            damaged.add(int(stem))
    for number, segment in enumerate(segments):
        if segment.base_offset in damaged:
            damaged.remove(segment.base_offset)
            segment.damage = fitted(
                load_damage(volume, segment.path(QUARANTINE_SUFFIX)) or (),
                size_bytes=segment.size_bytes,
                upper_offset=segments[number + 1].base_offset if number + 1 < len(segments) else None,
            )
    for base_offset in damaged:
        # The segment was deleted. The next one with that name has nothing to do with its damage.
        volume.remove(segment_path(directory, base_offset, QUARANTINE_SUFFIX))
    if not segments:
        segments.append(Segment(volume, directory, first_offset, 0, create=True))
    return segments
