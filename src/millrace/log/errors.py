"""The expected failures of the storage engine. Each carries facts; wire codes are the broker's business."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class CorruptBatch(MillraceError):
    """The bytes are no whole record batch: wrong length or wrong checksum. Nothing was appended."""


class UnsupportedBatchFormat(MillraceError):
    """A record batch in one of the formats before version 2."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"record batch of format {magic}; only format 2 is stored")
        self.magic = magic


class InvalidRecord(MillraceError):
    """A well-formed batch that no client may send: control bit, wrong count, more than one batch."""


class InvalidTimestamp(MillraceError):
    """A record whose time is further from the broker's than the topic allows."""

    def __init__(self, timestamp_ms: int, *, now_ms: int, before_max_ms: int, after_max_ms: int) -> None:
        super().__init__(
            f"timestamp {timestamp_ms} is out of range: at most {before_max_ms} ms before "
            f"and {after_max_ms} ms after {now_ms}"
        )
        self.timestamp_ms = timestamp_ms
        self.now_ms = now_ms


class BatchTooLarge(MillraceError):
    """A batch with more bytes than the topic or a segment takes."""

    def __init__(self, size_bytes: int, *, size_bytes_max: int) -> None:
        super().__init__(f"batch of {size_bytes} bytes; at most {size_bytes_max} are allowed")
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max


class OutOfOrderSequence(MillraceError):
    """A batch that leaves a gap behind the last one of its producer."""

    def __init__(self, producer_id: int, *, expected: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence}, expected {expected}")
        self.producer_id = producer_id
        self.expected = expected
        self.sequence = sequence


class ProducerFenced(MillraceError):
    """A batch with an older producer epoch than the newest one seen."""

    def __init__(self, producer_id: int, *, epoch: int, current_epoch: int) -> None:
        super().__init__(f"producer {producer_id} sent epoch {epoch}, the current one is {current_epoch}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current_epoch = current_epoch


class CoordinatorFenced(MillraceError):
    """A marker from a coordinator that has been replaced."""

    def __init__(self, producer_id: int, *, epoch: int, current_epoch: int) -> None:
        super().__init__(
            f"a marker for producer {producer_id}: coordinator epoch {epoch}, the current is {current_epoch}"
        )


class UnverifiedTransaction(MillraceError):
    """A transactional batch in a request that does not say whose transaction it belongs to."""

    def __init__(self, producer_id: int) -> None:
        super().__init__(f"a transactional batch of producer {producer_id} without a transactional id")


class TransactionOpen(MillraceError):
    """A batch outside of transactions by a producer that has one open here."""

    def __init__(self, producer_id: int) -> None:
        super().__init__(f"producer {producer_id} has an open transaction, and sent a batch outside of it")


class OffsetOutOfRange(MillraceError):
    """A read, or a deletion, at an offset that the log does not hold."""

    def __init__(self, offset: int, *, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is not within {log_start_offset} to {log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class CorruptLog(MillraceError):
    """The stored bytes at an offset are damaged. They are never served; later offsets may be fine."""

    def __init__(self, path: str, position: int, *, offset: int, next_offset: int | None) -> None:
        resume = "" if next_offset is None else f"; good data goes on at offset {next_offset}"
        super().__init__(f"{path}: damaged at byte {position}, offset {offset}{resume}")
        self.path = path
        self.position = position
        self.offset = offset
        self.next_offset = next_offset


class LogClosed(MillraceError):
    """The log was closed or deleted while somebody still held it."""


class StorageError(MillraceError):
    """A refusal by the disk or the file system."""

    def __init__(self, operation: str, path: str, reason: str) -> None:
        super().__init__(f"cannot {operation} {path}: {reason}")
        self.operation = operation
        self.path = path
        self.reason = reason


class DiskFull(StorageError):
    """No space left (or quota used up). Reads go on, and a later write may succeed."""


class DiskFailed(StorageError):
    """An I/O error. What was written since the last successful sync can no longer be trusted."""


class HalfRenamed(DiskFailed):
    """Some files have their new names and others do not, and the disk does not let us undo that. The next
    start knows what each name means; until then nothing may be written there."""


class ReadOnlyDisk(StorageError):
    """The file system refuses writes. Reads go on."""


class FileMissing(StorageError):
    """A file that should be there is not."""


class TooManyOpenFiles(StorageError):
    """The process may not open another file; nothing is wrong with the disk."""


class TooLittleMemory(StorageError):
    """The kernel lacked memory or buffers just now; nothing is wrong with the disk."""


class NoSuchDirectory(MillraceError):
    """A path that is none of the broker's data directories."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not one of this broker's data directories")


class NameTooLong(MillraceError):
    """A topic whose name is so long that the directories of a move could not be named."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the name of the topic {topic} is too long for a move between directories")


class LogDirectoryOffline(MillraceError):
    """The directory was fenced after a disk failure and takes no writes until a restart."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"log directory {path} is offline: {reason}")
        self.path = path
        self.reason = reason


class DirectoryLocked(MillraceError):
    """A data directory that another process has locked."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is in use by another broker process")
        self.path = path


class DirectoryMismatch(MillraceError):
    """The directory belongs to another cluster or broker, or has a format that is not known."""


class DuplicateLog(MillraceError):
    """The same partition lies in two data directories, and nothing says which of them counts."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"{first} and {second} are logs of the same partition: move one of them out of its data directory"
        )


class TopicIdMismatch(MillraceError):
    """A directory that holds the log of another topic with the same name."""

    def __init__(self, path: str, *, expected: str, found: str) -> None:
        super().__init__(f"{path} belongs to topic id {found}, not {expected}")
        self.path = path


def is_shortage(error: StorageError) -> bool:
    """Whether the process lacked something for a moment and never asked the disk, so that it may try again. A
    sync that was begun and failed is never a shortage: the system may not tell a second time."""
    return isinstance(error, TooManyOpenFiles) or (
        isinstance(error, TooLittleMemory) and error.operation == "open"
    )
