"""Checks stored files against each other and themselves. Read-only: it finds problems and repairs none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.log.batches.reader import read_batches
from millrace.log.disk.volume import Volume
from millrace.log.inspection.stored_files import (
    PER_SEGMENT,
    FileKind,
    StoredFile,
    find_files,
    read_checkpoint,
)
from millrace.log.partition.layout import parse_directory_name
from millrace.log.segments import checkpoints
from millrace.log.segments.header_walk import RELATIVE_OFFSET_MAX
from millrace.log.segments.offset_index import ENTRY as OFFSET_ENTRY
from millrace.log.segments.quarantine import load_damage
from millrace.log.segments.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from millrace.log.segments.time_index import ENTRY as TIME_ENTRY
from millrace.log.segments.txn_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from millrace.log.segments.txn_index import TxnIndex
from millrace.log.state.producer_state import decode_snapshot
from millrace.wire.batch_header import BatchHeader
from millrace.wire.compression import DecompressedTooLarge
from millrace.wire.record_spans import MalformedBatch, scan_records
from millrace.wire.records import check_batch, inflate_records

PROBLEMS_MAX: Final = 10_000
"""A file of garbage must not become a list that fills the memory."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Problem(NamedTuple):
    """Something in a file that is not as it should be."""

    path: str
    position: int
    """The byte where it is, -1 if it has no place."""
    what: str


@dataclass(slots=True)
class VerifyResult:
    """What was looked at, and the problems in it."""

    files: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


class _Walked(NamedTuple):
    """What the walk over a segment learned of its end."""

    path: str
    next_offset: int


def scrub_times(volume: Volume, path: str) -> list[tuple[str, int | None]]:
    """The logs of a data directory, or the one of a partition directory, and when a broker last went through
    each of them for damage, in milliseconds since 1970."""
    path = path.rstrip("/")
    parent, _, name = path.rpartition("/")
    own = parse_directory_name(name)
    times_path = f"{path if own is None else parent or '.'}/{checkpoints.SCRUB_TIMES}"
    if not volume.exists(times_path):
        return []
    times = checkpoints.read_offsets(volume, times_path)
    if own is not None:
        return [(name, times.get(own))]
    found = [(entry.name, parse_directory_name(entry.name)) for entry in volume.list_directory(path)]
    return [(name, times.get(partition)) for name, partition in found if partition is not None]


def verify(
    volume: Volume, path: str, *, deep: bool = False, progress: Progress | None = None
) -> VerifyResult:
    """Check a data directory, a partition directory or one file; `deep` reads every record as well."""
    files = find_files(volume, path)
    total = sum(file.size_bytes for file in files)
    result = VerifyResult()
    check = _Check(volume, result, deep=deep)
    done = 0
    for file in files:
        for size_bytes in check.file(file):
            if progress is not None:
                progress(done + min(size_bytes, file.size_bytes), total)
        done += file.size_bytes
        result.files += 1
        result.bytes += file.size_bytes
        if progress is not None:
            progress(done, total)
    return result


class _Check:
    def __init__(self, volume: Volume, result: VerifyResult, *, deep: bool) -> None:
        self._volume = volume
        self._result = result
        self._deep = deep
        self._previous: dict[str, _Walked] = {}

    def file(self, file: StoredFile) -> Iterator[int]:
        """Check one file, yielding now and then how many of its bytes are done."""
        if file.kind in PER_SEGMENT and file.base_offset < 0:
            self._problem(file, -1, "the name should be an offset of 20 digits")
        match file.kind:
            case FileKind.LOG:
                yield from self._log(file)
            case FileKind.TXN_INDEX:
                self._txn_index(file)
            case FileKind.SNAPSHOT:
                if decode_snapshot(self._volume.read_bytes(file.path), now_ms=0) is None:
                    self._problem(file, -1, "not a whole producer snapshot")
            case FileKind.LEADER_EPOCHS:
                self._leader_epochs(file)
            case FileKind.OFFSET_CHECKPOINT:
                if read_checkpoint(self._volume, file) is None:
                    self._problem(file, -1, "not a whole checkpoint")
            case FileKind.PARTITION_METADATA:
                if checkpoints.read_partition_metadata(self._volume, file.directory) is None:
                    self._problem(file, -1, "no version and topic id")
            case FileKind.OFFSET_INDEX | FileKind.TIME_INDEX:
                # The check of its segment compares the entries, if the segment is there.
                if not self._volume.exists(_sibling(file, LOG_SUFFIX)):
                    self._problem(file, -1, "an index without a log")
            case FileKind.QUARANTINE:
                self._quarantine(file)
            case FileKind.PROPERTIES | FileKind.OTHER:
                return

    def _log(self, file: StoredFile) -> Iterator[int]:
        base_offset = max(file.base_offset, 0)
        is_live = file.name.endswith(LOG_SUFFIX)
        previous = self._previous.get(file.directory)
        if is_live and previous is not None and base_offset < previous.next_offset:
            self._problem(file, 0, f"begins before the end of {previous.path} at {previous.next_offset}")
        offset_index = _OffsetIndexCheck(self, file, base_offset)
        time_index = _TimeIndexCheck(self, file, base_offset)
        next_offset = base_offset
        position = end = 0
        try:
            for position, batch in read_batches(self._volume.file(file.path), file.size_bytes):
                end = position + len(batch)
                header = self._batch(file, position, batch)
                if header is not None:
                    if header.base_offset < next_offset:
                        self._problem(file, position, f"offset {header.base_offset} after {next_offset - 1}")
                    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
                        self._problem(file, position, "too far from the segment's base offset")
                    next_offset = max(next_offset, header.next_offset)
                    offset_index.batch(position, header)
                    time_index.batch(header)
                yield end
        except MalformedBatch as error:
            self._problem(file, end, error.reason)
        offset_index.end()
        time_index.end()
        if is_live:
            self._previous[file.directory] = _Walked(file.name, next_offset)

    def _batch(self, file: StoredFile, position: int, batch: memoryview) -> BatchHeader | None:
        try:
            header = check_batch(batch)
            self._result.batches += 1
            self._result.records += header.records_count
            if self._deep:
                for _ in scan_records(inflate_records(batch, header), header):
                    pass
        except (MalformedBatch, DecompressedTooLarge) as error:
            self._problem(file, position, str(error))
            return None
        return header

    def _txn_index(self, file: StoredFile) -> None:
        if file.size_bytes % TXN_ENTRY_SIZE:
            self._problem(file, file.size_bytes, f"no multiple of {TXN_ENTRY_SIZE} bytes")
        aborted = TxnIndex(self._volume.file(file.path)).all_aborted()
        if len(aborted) != file.size_bytes // TXN_ENTRY_SIZE:
            self._problem(file, -1, "entries of an unknown version")
        for number, entry in enumerate(aborted):
            if not 0 <= entry.first_offset <= entry.last_offset:
                self._problem(file, number * TXN_ENTRY_SIZE, "a transaction that ends before it begins")

    def _quarantine(self, file: StoredFile) -> None:
        damage = load_damage(self._volume, file.path)
        if damage is None:
            self._problem(file, -1, "not a whole list of damaged ranges")
        for damaged in damage or ():
            offsets = f"offsets {damaged.first_offset} to {damaged.next_offset - 1}"
            what = f"{damaged.size_bytes} bytes of the segment" if damaged.size_bytes else "its missing end"
            self.problem(_sibling(file, LOG_SUFFIX), damaged.position, f"in quarantine: {what}, {offsets}")

    def _leader_epochs(self, file: StoredFile) -> None:
        rows = read_checkpoint(self._volume, file)
        if rows is None:
            self._problem(file, -1, "not a whole checkpoint")
            return
        entries = [(epoch, offset) for _, epoch, offset in rows]
        for before, after in itertools.pairwise(entries):
            if after[0] <= before[0] or after[1] < before[1]:
                self._problem(file, -1, f"epoch {after[0]} at {after[1]} after {before[0]} at {before[1]}")

    def _problem(self, file: StoredFile, position: int, what: str) -> None:
        self.problem(file.path, position, what)

    def problem(self, path: str, position: int, what: str) -> None:
        if len(self._result.problems) < PROBLEMS_MAX:
            self._result.problems.append(Problem(path, position, what))

    def index_entries(self, log: StoredFile, suffix: str, entry_size: int) -> list[tuple[int, int]]:
        """The entries of the index beside a log; a missing index is no problem, it can be built again."""
        path = _sibling(log, suffix)
        if not self._volume.exists(path):
            return []
        data = self._volume.read_bytes(path)
        if len(data) % entry_size:
            self.problem(path, len(data), f"no multiple of {entry_size} bytes")
            data = data[: len(data) // entry_size * entry_size]
        entry = OFFSET_ENTRY if entry_size == OFFSET_ENTRY.size else TIME_ENTRY
        entries = [(first, second) for first, second in entry.iter_unpack(data)]
        # Zeros at the end are space that Kafka reserved and did not use.
        while entries and entries[-1] == (0, 0):
            entries.pop()
        return entries


class _OffsetIndexCheck:
    """Each entry must point at the start of a batch that does not begin behind the entry's offset."""

    def __init__(self, check: _Check, log: StoredFile, base_offset: int) -> None:
        self._check = check
        self._path = _sibling(log, OFFSET_INDEX_SUFFIX)
        self._base_offset = base_offset
        self._entries = check.index_entries(log, OFFSET_INDEX_SUFFIX, OFFSET_ENTRY.size)
        self._next = 0
        for number, (before, after) in enumerate(zip(self._entries, self._entries[1:], strict=False)):
            if after[0] <= before[0] or after[1] <= before[1]:
                self._problem(number + 1, "does not grow")

    def batch(self, position: int, header: BatchHeader) -> None:
        entries = self._entries
        while self._next < len(entries) and entries[self._next][1] <= position:
            relative, found = entries[self._next]
            if found < position:
                self._problem(self._next, f"position {found} is not where a batch begins")
            elif not header.base_offset <= self._base_offset + relative <= header.last_offset:
                self._problem(
                    self._next,
                    f"offset {self._base_offset + relative} for a batch of {header.base_offset}"
                    f" to {header.last_offset}",
                )
            self._next += 1

    def end(self) -> None:
        for number in range(self._next, len(self._entries)):
            self._problem(number, f"position {self._entries[number][1]} is behind the last batch")

    def _problem(self, number: int, what: str) -> None:
        self._check.problem(self._path, number * OFFSET_ENTRY.size, what)


class _TimeIndexCheck:
    """Up to an entry's offset no batch may be younger than the entry says."""

    def __init__(self, check: _Check, log: StoredFile, base_offset: int) -> None:
        self._check = check
        self._path = _sibling(log, TIME_INDEX_SUFFIX)
        self._base_offset = base_offset
        self._entries = check.index_entries(log, TIME_INDEX_SUFFIX, TIME_ENTRY.size)
        self._next = 0
        self._newest = -1
        for number, (before, after) in enumerate(zip(self._entries, self._entries[1:], strict=False)):
            if after[0] <= before[0] or after[1] < before[1]:
                self._problem(number + 1, "does not grow")

    def batch(self, header: BatchHeader) -> None:
        entries = self._entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] < header.base_offset:
            self._compare()
        self._newest = max(self._newest, header.max_timestamp)
        while self._next < len(entries) and self._base_offset + entries[self._next][1] == header.last_offset:
            self._compare()

    def end(self) -> None:
        while self._next < len(self._entries):
            self._compare()

    def _compare(self) -> None:
        timestamp = self._entries[self._next][0]
        if timestamp < self._newest:
            self._problem(self._next, f"timestamp {timestamp}, but a batch before has {self._newest}")
        self._next += 1

    def _problem(self, number: int, what: str) -> None:
        self._check.problem(self._path, number * TIME_ENTRY.size, what)


def _sibling(file: StoredFile, suffix: str) -> str:
    stem, _, rest = file.name.partition(".")
    # Files that are being swapped keep their extra suffix together.
    _, dot, extra = rest.partition(".")
    return f"{file.directory}/{stem}{suffix}{dot}{extra}"
