"""The disk's part of moving a log to another data directory: what threads do, from descriptions alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.log.disk.volume import FileHandle, Volume
from millrace.log.errors import CorruptLog, FileMissing
from millrace.log.segments import checkpoints
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX
from millrace.log.segments.segment import INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_path
from millrace.log.state.epochs import EpochStart, LeaderEpochs, save_epochs

MOVED_FROM: Final = "moved-from"
"""A file in a log's directory, with the ids of the data directories that the log was moved out of and may
still show up in."""
_CHUNK_BYTES: Final = 1024 * 1024
_BESIDE: Final = (*INDEX_SUFFIXES, QUARANTINE_SUFFIX)


class FilePiece(NamedTuple):
    """Bytes of one segment's file to copy."""

    base_offset: int
    source: FileHandle | None
    position: int
    size_bytes: int
    is_complete: bool
    """The segment is sealed and this is its end: the files beside it follow."""


class Passage(NamedTuple):
    """A log on its way: where it is and where its copy is made, with the data directories of both."""

    original: str
    copy: str
    target_path: str
    source_id: str
    target_id: str
    topic_id: TopicId


def copy_pieces(volume: Volume, passage: Passage, pieces: Sequence[FilePiece], doomed: Sequence[int]) -> None:
    """Remove the copies of doomed segments, then add the pieces."""
    for base_offset in doomed:
        for suffix in (LOG_SUFFIX, SNAPSHOT_SUFFIX, *_BESIDE):
            volume.remove(segment_path(passage.copy, base_offset, suffix))
    for piece in pieces:
        base_offset = piece.base_offset
        target = volume.file(segment_path(passage.copy, base_offset, LOG_SUFFIX), create=True)
        if piece.position == 0:
            target.truncate(0)
            _copy_small(volume, passage, base_offset, SNAPSHOT_SUFFIX)
        end = piece.position + piece.size_bytes
        for position in range(piece.position, end, _CHUNK_BYTES):
            wanted = min(_CHUNK_BYTES, end - position)
            assert piece.source is not None
            data = piece.source.read_at(position, wanted)
            if len(data) < wanted:
                path = segment_path(passage.original, base_offset, LOG_SUFFIX)
                raise CorruptLog(path, position, offset=base_offset, next_offset=None)
            target.write_at(position, data)
        if piece.is_complete:
            for suffix in _BESIDE:
                _copy_small(volume, passage, base_offset, suffix)
            target.sync()
        target.close()


def _copy_small(volume: Volume, passage: Passage, base_offset: int, suffix: str) -> None:
    """Copy a file beside the segment. A missing one can be made from the log, or was never there."""
    try:
        data = volume.read_bytes(segment_path(passage.original, base_offset, suffix))
    except FileMissing:
        return
    volume.write_bytes(segment_path(passage.copy, base_offset, suffix), data)


def flush_copy(
    volume: Volume, passage: Passage, active_base_offset: int, epoch_starts: Sequence[EpochStart]
) -> None:
    """Bring the copy to the disk, with all that a start needs to know about it."""
    for suffix in _BESIDE:
        _copy_small(volume, passage, active_base_offset, suffix)
    checkpoints.write_partition_metadata(volume, passage.copy, passage.topic_id)
    save_epochs(volume, passage.copy, LeaderEpochs(list(epoch_starts)), durable=True)
    origins = read_origins(volume, passage.original)
    if passage.target_id in origins:
        # The log was moved out of there once. If two logs each named the other, none would be the newer.
        origins.remove(passage.target_id)
        write_origins(volume, passage.original, origins)
    write_origins(volume, passage.copy, [*origins, passage.source_id])
    path = segment_path(passage.copy, active_base_offset, LOG_SUFFIX)
    if volume.exists(path):
        file = volume.file(path)
        file.sync()
        file.close()
    for directory in (passage.copy, passage.target_path):
        volume.sync_directory(directory)


def forget_original(
    volume: Volume, moved_path: str, deleted_path: str, source: tuple[str, str], final_path: str
) -> None:
    """The copy stands for itself: let the original be removed. `source` is its directory's path and id."""
    volume.rename(moved_path, deleted_path)
    volume.sync_directory(source[0])
    origins = read_origins(volume, final_path)
    write_origins(volume, final_path, [origin for origin in origins if origin != source[1]])


def read_origins(volume: Volume, path: str) -> list[str]:
    """The ids of the data directories that a log was moved out of, as far as it may still show up there."""
    try:
        found = json.loads(volume.read_bytes(f"{path}/{MOVED_FROM}"))
    except (FileMissing, ValueError):
        return []
    return [str(origin) for origin in found] if isinstance(found, list) else []


def write_origins(volume: Volume, path: str, origins: list[str]) -> None:
    if origins:
        volume.write_bytes(f"{path}/{MOVED_FROM}", json.dumps(origins).encode())
    else:
        volume.remove(f"{path}/{MOVED_FROM}")
        volume.sync_directory(path)
