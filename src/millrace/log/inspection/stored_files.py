"""Finds and names the files of a data directory, a partition directory or a single path. Changes nothing."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Final, NamedTuple

from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing
from millrace.log.segments import checkpoints
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX
from millrace.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from millrace.log.state.epochs import FILE_NAME as EPOCHS_FILE

_PARTITION: Final = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)$")
_BASE_OFFSET: Final = re.compile(r"\d{20}$")
_WORK_SUFFIXES: Final = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)


class FileKind(StrEnum):
    """What a file of a partition's directory holds."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCHS = "leader-epochs"
    PARTITION_METADATA = "partition-metadata"
    OFFSET_CHECKPOINT = "offset-checkpoint"
    PROPERTIES = "properties"
    QUARANTINE = "quarantine"
    OTHER = "other"


_BY_SUFFIX: Final = {
    LOG_SUFFIX: FileKind.LOG,
    OFFSET_INDEX_SUFFIX: FileKind.OFFSET_INDEX,
    TIME_INDEX_SUFFIX: FileKind.TIME_INDEX,
    TXN_INDEX_SUFFIX: FileKind.TXN_INDEX,
    SNAPSHOT_SUFFIX: FileKind.SNAPSHOT,
    QUARANTINE_SUFFIX: FileKind.QUARANTINE,
}
_BY_NAME: Final = {
    EPOCHS_FILE: FileKind.LEADER_EPOCHS,
    checkpoints.PARTITION_METADATA: FileKind.PARTITION_METADATA,
    checkpoints.META_PROPERTIES: FileKind.PROPERTIES,
    checkpoints.RECOVERY_POINTS: FileKind.OFFSET_CHECKPOINT,
    checkpoints.LOG_START_OFFSETS: FileKind.OFFSET_CHECKPOINT,
    checkpoints.HIGH_WATERMARKS: FileKind.OFFSET_CHECKPOINT,
    checkpoints.CLEANER_OFFSETS: FileKind.OFFSET_CHECKPOINT,
}
PER_SEGMENT: Final = frozenset(_BY_SUFFIX.values())


class StoredFile(NamedTuple):
    """A file of a partition's directory."""

    path: str
    kind: FileKind
    size_bytes: int
    base_offset: int
    """The offset in the file's name; -1 if the name has none of 20 digits."""

    @property
    def directory(self) -> str:
        return os.path.dirname(self.path)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def find_files(volume: Volume, path: str) -> list[StoredFile]:
    """All files below a data or partition directory, partition by partition, or the one file at `path`."""
    path = os.path.abspath(path)
    try:
        size_bytes = _size_of_file(volume, path)
    except FileMissing:
        raise FileMissing("find", path, "no such file or directory") from None
    if size_bytes is not None:
        return [_classify(path, size_bytes)]
    found: list[StoredFile] = []
    directories: list[str] = []
    for entry in volume.list_directory(path):
        if entry.name.endswith(DELETED_SUFFIX):
            # Such a file is no longer part of the log; whoever wants to see it names it.
            continue
        if not entry.is_directory:
            found.append(_classify(f"{path}/{entry.name}", entry.size_bytes))
        elif _PARTITION.match(entry.name):
            directories.append(f"{path}/{entry.name}")
    for directory in directories:
        found += [
            _classify(f"{directory}/{entry.name}", entry.size_bytes)
            for entry in volume.list_directory(directory)
            if not entry.is_directory and not entry.name.endswith(DELETED_SUFFIX)
        ]
    return found


def read_checkpoint(volume: Volume, file: StoredFile) -> list[tuple[str, int, int]] | None:
    """Rows of topic, partition and offset, or of nothing, epoch and offset; None if the file is not whole."""
    is_epochs = file.kind is FileKind.LEADER_EPOCHS
    rows = checkpoints.parse_lines(volume.read_bytes(file.path), fields=2 if is_epochs else 3)
    if rows is None:
        return None
    try:
        return [("" if is_epochs else row[0], int(row[-2]), int(row[-1])) for row in rows]
    except ValueError:
        return None


def _size_of_file(volume: Volume, path: str) -> int | None:
    """The size of a file; None for a directory."""
    parent, name = os.path.split(path)
    for entry in volume.list_directory(parent):
        if entry.name == name:
            return None if entry.is_directory else entry.size_bytes
    raise FileMissing("find", path, "no such file")


def _classify(path: str, size_bytes: int) -> StoredFile:
    name = os.path.basename(path)
    if name in _BY_NAME:
        return StoredFile(path, _BY_NAME[name], size_bytes, -1)
    for suffix in _WORK_SUFFIXES:
        name = name.removesuffix(suffix)
    stem, dot, suffix = name.partition(".")
    kind = _BY_SUFFIX.get(dot + suffix, FileKind.OTHER)
    base_offset = int(stem) if kind in PER_SEGMENT and _BASE_OFFSET.match(stem) else -1
    return StoredFile(path, kind, size_bytes, base_offset)
