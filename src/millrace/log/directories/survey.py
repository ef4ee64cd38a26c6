"""What lies in a data directory before anything is opened: logs, copies that were under way, leftovers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, FileMissing
from millrace.log.partition.layout import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    MOVED_DIRECTORY_SUFFIX,
    find_segments,
    parse_directory_name,
    parse_unique_name,
)
from millrace.log.segments import checkpoints
from millrace.log.segments.segment import Segment

logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadProgress:
    """How far the start has come with the logs of a directory."""

    logs_total: int = 0
    logs_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    is_clean: bool = True


@dataclass(slots=True)
class FoundPartition:
    """A directory that holds the log of a partition."""

    topic_partition: TopicPartition
    directory: str
    topic_id: TopicId
    log_end_offset: int
    """The recovery point; after an orderly end that is where the log ends."""
    segments: list[Segment] | None = None
    size_bytes: int = 0
    """How much recovery has to check, if the segments cannot be trusted."""

    def trust(self, volume: Volume, log_start_offset: int) -> None:
        """Believe names and sizes, unless the last batch contradicts the checkpoint. That has no checksum:
        with a wrong digit in it, offsets would be given a second time."""
        segments = find_segments(volume, self.directory, first_offset=log_start_offset)
        try:
            end_offset = segments[-1].end_offset()
        except (CorruptLog, FileMissing):
            return
        segments[-1].forget_indexes()
        if end_offset == self.log_end_offset:
            self.segments = segments


class Passage(NamedTuple):
    """A directory of a log on its way to another data directory: the unfinished copy, or the original that
    its copy has replaced."""

    topic_partition: TopicPartition
    unique: str
    """The same for the copy and its original."""
    directory: str


@dataclass(slots=True, kw_only=True)
class Survey:
    """What lies in a data directory at the start."""

    is_clean: bool
    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    cleaner_offsets: dict[TopicPartition, int]
    partitions: dict[TopicPartition, FoundPartition] = field(default_factory=dict)
    futures: list[Passage] = field(default_factory=list)
    moved: list[Passage] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """Directories that only wait for their removal."""
    has_strays: bool = False
    """A log was taken out of the partitions, and the checkpoints still speak of it."""

    def add(self, volume: Volume, topic_partition: TopicPartition, directory: str) -> None:
        """Look into a log's directory."""
        item = FoundPartition(
            topic_partition,
            directory,
            checkpoints.read_partition_metadata(volume, directory) or NO_TOPIC_ID,
            self.recovery_points.get(topic_partition, 0),
        )
        if self.is_clean and topic_partition in self.recovery_points:
            item.trust(volume, self.log_starts.get(topic_partition, 0))
        if item.segments is None:
            item.size_bytes = sum(entry.size_bytes for entry in volume.list_directory(directory))
        self.partitions[topic_partition] = item

    def ends_of(self, topic_partition: TopicPartition, log_end_offset: int) -> tuple[int, int]:
        """Where the readable part of a log begins and ends by the checkpoints; 0 for what cannot be true."""
        log_start = self.log_starts.get(topic_partition, 0)
        high_watermark = self.high_watermarks.get(topic_partition, 0)
        recovery_point = self.recovery_points.get(topic_partition, 0)
        if log_start > max(log_end_offset, high_watermark, recovery_point):
            # Nobody deletes what is not there yet. To believe this number would hide all records.
            logger.error(
                "%s cannot begin at %d as its checkpoint says, and begins with its first file",
                topic_partition,
                log_start,
            )
            log_start = 0
        if self.is_clean and high_watermark > log_end_offset:
            # Only a crash can leave a log shorter than that; after an orderly end the number is wrong.
            high_watermark = 0
        return log_start, high_watermark

    def progress(self) -> LoadProgress:
        return LoadProgress(
            logs_total=len(self.partitions),
            bytes_total=sum(item.size_bytes for item in self.partitions.values()),
            is_clean=self.is_clean,
        )


def survey(volume: Volume, path: str) -> Survey:
    """Read the checkpoints and names, and the segments of logs that can be trusted. Runs in the executor."""
    found = Survey(
        is_clean=checkpoints.read_clean_shutdown(volume, path),
        recovery_points=checkpoints.read_offsets(volume, f"{path}/{checkpoints.RECOVERY_POINTS}"),
        log_starts=checkpoints.read_offsets(volume, f"{path}/{checkpoints.LOG_START_OFFSETS}"),
        high_watermarks=checkpoints.read_offsets(volume, f"{path}/{checkpoints.HIGH_WATERMARKS}"),
        cleaner_offsets=checkpoints.read_offsets(volume, f"{path}/{checkpoints.CLEANER_OFFSETS}"),
    )
    if found.is_clean:
        # From here on only an orderly end puts the mark back.
        checkpoints.remove_clean_shutdown(volume, path)
    for entry in volume.list_directory(path):
        if not entry.is_directory:
            continue
        directory = f"{path}/{entry.name}"
        if entry.name.endswith(DELETE_DIRECTORY_SUFFIX):
            found.deleted.append(directory)
            continue
        for suffix, passages in (
            (FUTURE_DIRECTORY_SUFFIX, found.futures),
            (MOVED_DIRECTORY_SUFFIX, found.moved),
        ):
            named = parse_unique_name(entry.name, suffix)
            if named is not None:
                passages.append(Passage(*named, directory))
        topic_partition = parse_directory_name(entry.name)
        if topic_partition is not None:
            found.add(volume, topic_partition, directory)
    return found
