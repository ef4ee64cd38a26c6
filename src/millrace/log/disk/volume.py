"""The only way to files: what storage needs from a file system, and the real one behind it.

Errors of the operating system become errors of `log.errors` here and nowhere else. An open file is held by a
`FileHandle`, which closes it when the last reference goes: the pool may drop a file at any time, and whoever
still sends from it (a response half written, an fsync in a thread) is not harmed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol, TypeAlias

from millrace.core.lanes import Lanes, Waits
from millrace.log.disk import whole_disk_sync
from millrace.log.errors import (
    DirectoryLocked,
    DiskFailed,
    DiskFull,
    FileMissing,
    ReadOnlyDisk,
    StorageError,
    TooLittleMemory,
    TooManyOpenFiles,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

_PROBE_BYTES: Final = 1
_CAN_DROP_CACHED: Final = hasattr(os, "posix_fadvise")
_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_SHORT: Final = frozenset((errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS))
_NOT_WRITABLE: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))


class DirectoryEntry(NamedTuple):
    """A name in a directory."""

    name: str
    is_directory: bool
    size_bytes: int


class FileHandle(Protocol):
    """An open file, readable for as long as somebody holds this object."""

    path: str

    def fileno(self) -> int:
        """The descriptor for sendfile, or -1 if there is none and `read_at` must serve."""

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """The bytes there; fewer only at the end of the file."""

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Whether first and last byte of the range can be read without waiting for the disk."""

    def sync(self) -> None:
        """Return when the content is on the disk."""

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """Tell the system that it need not keep this range in memory, as far as it is on the disk."""


class VolumeFile(Protocol):
    """A file by its path, opened when first used. One writer; positions instead of a cursor."""

    path: str

    def handle(self) -> FileHandle: ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of it or raise; after an error bytes from `position` on may be torn."""

    def read_at(self, position: int, size_bytes: int) -> bytes: ...

    def size_bytes(self) -> int: ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Return when the content is on the disk."""

    def close(self) -> None:
        """Let go of the open file; the next use opens it again."""


class DirectoryLock(Protocol):
    """Keeps other processes out of a directory until it is released."""

    def release(self) -> None: ...


class WholeDisk(Protocol):
    """The disk of a directory, held open."""

    def sync(self) -> None:
        """Return when all files and names of the file system are on the disk as they are now. Raises if a
        write has failed since the last call, or since the opening, whoever else was told."""


class Volume(Protocol):
    """All that the log asks of a file system. The simulator has a twin of it that loses power and fails."""

    def file(self, path: str, *, create: bool = False) -> VolumeFile: ...

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """All entries, sorted by name."""

    def modified_ms(self, path: str) -> int: ...

    def make_directory(self, path: str) -> None:
        """Make a directory with its parents; not an error if it is there."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; replaces a file that is already there."""

    def remove(self, path: str) -> None:
        """Remove a file; not an error if it is gone."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it; not an error if it is gone."""

    def sync_directory(self, path: str) -> None:
        """Make names created, renamed or removed in this directory last."""

    def whole_disk(self, path: str) -> WholeDisk | None:
        """The disk of this directory, to sync all that lies on it; None where the system cannot. A caller
        that has to hear of every error opens it before it writes, and keeps it."""

    def read_bytes(self, path: str) -> bytes: ...

    def write_bytes(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a small file as a whole: a reader sees the old or the new content, never a mixture."""

    def lock(self, path: str) -> DirectoryLock:
        """Take a lock that no other process can have; raises DirectoryLocked."""

    def lane(self, waits: Waits, path: str) -> Executor | None:
        """Where to do work on this path that blocks; None for the loop's default executor."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...


def storage_error(error: OSError, operation: str, path: str) -> StorageError:
    """Our error for an error of the operating system."""
    code = error.errno
    reason = error.strerror or str(error)
    if code in _NO_SPACE:
        return DiskFull(operation, path, reason)
    if code in _NOT_WRITABLE:
        return ReadOnlyDisk(operation, path, reason)
    if code == errno.ENOENT:
        return FileMissing(operation, path, reason)
    if code in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(operation, path, reason)
    if code in _SHORT and operation != "sync":
        # A failed sync is never this: the system may count what it had to write as written by now.
        return TooLittleMemory(operation, path, reason)
    return DiskFailed(operation, path, reason)


class DiskHandle:
    """An open file. The system closes it when nobody holds the handle any more."""

    __slots__ = ("_number", "path", "writable")

    def __init__(self, number: int, path: str, *, writable: bool) -> None:
        self._number = number
        self.path = path
        self.writable = writable

    def fileno(self) -> int:
        return self._number

    def read_at(self, position: int, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._number, size_bytes, position)
            if len(data) < size_bytes and data:
                # The kernel reads at most 2 GiB at once, and a signal may cut a read short.
                parts = [data]
                done = len(data)
                while done < size_bytes and (
                    data := os.pread(self._number, size_bytes - done, position + done)
                ):
                    parts.append(data)
                    done += len(data)
                return b"".join(parts)
            return data
        except OSError as error:
            raise storage_error(error, "read", self.path) from error

    def is_cached(self, position: int, size_bytes: int) -> bool:
        probe = bytearray(_PROBE_BYTES)
        try:
            os.preadv(self._number, [probe], position, os.RWF_NOWAIT)
            os.preadv(self._number, [probe], position + max(size_bytes - _PROBE_BYTES, 0), os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # A file system without RWF_NOWAIT cannot be asked: the caller can only read straight away.
            return True
        return True

    def sync(self) -> None:
        try:
            os.fsync(self._number)
        except OSError as error:
            raise storage_error(error, "sync", self.path) from error

    def drop_cached(self, position: int, size_bytes: int) -> None:
        if _CAN_DROP_CACHED:
            # A hint: a file system that does not take it loses nothing.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._number, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._number)


class DiskFile:
    """A path, and its open handle while the pool leaves it open."""

    __slots__ = ("_create", "_handle", "_pool", "path", "recently_used")

    def __init__(self, pool: FilePool, path: str, *, create: bool) -> None:
        self._pool = pool
        self.path = path
        self._create = create
        self._handle: DiskHandle | None = None
        self.recently_used = False

    def handle(self) -> DiskHandle:
        self.recently_used = True
        handle = self._handle
        return handle if handle is not None else self._open()

    def write_at(self, position: int, data: Buffer) -> None:
        self.recently_used = True
        handle = self._handle
        if handle is None:
            handle = self._open()
        try:
            written = os.pwrite(handle._number, data, position)
        except OSError as error:
            raise self._write_error(error, handle) from error
        if written != len(data):
            self._write_rest(handle, memoryview(data), position, written)

    def _write_rest(self, handle: DiskHandle, data: memoryview, position: int, written: int) -> None:
        try:
            while written < len(data):
                written += os.pwrite(handle.fileno(), data[written:], position + written)
        except OSError as error:
            raise self._write_error(error, handle) from error

    def _write_error(self, error: OSError, handle: DiskHandle) -> StorageError:
        if error.errno == errno.EBADF and not handle.writable:
            # The next write opens the file again: by then the file system may be writable.
            self.close()
            return ReadOnlyDisk("write", self.path, "the file system is read-only")
        return storage_error(error, "write", self.path)

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return self.handle().read_at(position, size_bytes)

    def size_bytes(self) -> int:
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            if self._create:
                return 0
            raise FileMissing("stat", self.path, "no such file") from None
        except OSError as error:
            raise storage_error(error, "stat", self.path) from error

    def truncate(self, size_bytes: int) -> None:
        handle = self.handle()
        try:
            os.ftruncate(handle.fileno(), size_bytes)
        except OSError as error:
            if not handle.writable:
                raise ReadOnlyDisk("truncate", self.path, "the file system is read-only") from error
            raise storage_error(error, "truncate", self.path) from error

    def sync(self) -> None:
        self.handle().sync()

    def close(self) -> None:
        if self._handle is not None:
            self._pool.forget(self)
            self._handle = None

    def drop_handle(self) -> None:
        """Let go of the handle, for the pool alone: others that hold it keep the file open."""
        self._handle = None

    def _open(self) -> DiskHandle:
        handle = _open_handle(self.path, create=self._create)
        self._handle = handle
        self._pool.opened(self)
        return handle


def _open_handle(path: str, *, create: bool) -> DiskHandle:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        return DiskHandle(os.open(path, flags, 0o644), path, writable=True)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise storage_error(error, "open", path) from error
    try:
        # Reads go on after a read-only remount.
        return DiskHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, writable=False)
    except OSError as error:
        raise storage_error(error, "open", path) from error


class FilePool:
    """Bounds the number of open files. Over the bound, files not used since the last look are dropped.

    Second chance instead of strict order: a use costs one attribute, not a move in a list.
    """

    def __init__(self, open_files_max: int) -> None:
        assert open_files_max > 0, open_files_max
        self.open_files_max = open_files_max
        self._open: dict[DiskFile, None] = {}
        self._lock = threading.Lock()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def opened(self, file: DiskFile) -> None:
        with self._lock:
            self._open[file] = None
            while len(self._open) > self.open_files_max:
                oldest = next(iter(self._open))
                del self._open[oldest]
                if oldest is file or oldest.recently_used:
                    oldest.recently_used = False
                    self._open[oldest] = None
                else:
                    oldest.drop_handle()

    def forget(self, file: DiskFile) -> None:
        with self._lock:
            self._open.pop(file, None)


class _FileLock:
    def __init__(self, handle: DiskHandle) -> None:
        self._handle: DiskHandle | None = handle

    def release(self) -> None:
        self._handle = None


class DiskOfDirectory:
    """A file system, reached through an open directory on it."""

    __slots__ = ("_open", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._open: Final = whole_disk_sync.OpenDisk(path)
        except OSError as error:
            raise storage_error(error, "open", path) from error

    def sync(self) -> None:
        try:
            self._open.sync()
        except OSError as error:
            raise storage_error(error, "sync", self.path) from error


class DiskVolume:
    """The file system of this machine."""

    def __init__(self, *, open_files_max: int = 1024, lanes: Lanes | None = None) -> None:
        self.pool = FilePool(open_files_max)
        self._lanes = lanes

    def lane(self, waits: Waits, path: str) -> Executor | None:
        return None if self._lanes is None else self._lanes.of(waits, path)

    def file(self, path: str, *, create: bool = False) -> DiskFile:
        return DiskFile(self.pool, path, create=create)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        try:
            with os.scandir(path) as found:
                entries = []
                for entry in found:
                    is_directory = entry.is_dir()
                    with contextlib.suppress(FileNotFoundError):
                        size_bytes = 0 if is_directory else entry.stat().st_size
                        entries.append(DirectoryEntry(entry.name, is_directory, size_bytes))
        except OSError as error:
            raise storage_error(error, "list", path) from error
        entries.sort()
        return entries

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise storage_error(error, "stat", path) from error

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "create directory", path) from error

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise storage_error(error, "rename", source) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "remove", path) from error

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "remove", path) from error

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            # The operation is not "sync": nothing was asked of the disk.
            raise storage_error(error, "open", path) from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise storage_error(error, "sync", path) from error
        finally:
            os.close(descriptor)

    def whole_disk(self, path: str) -> DiskOfDirectory | None:
        return DiskOfDirectory(path) if whole_disk_sync.IS_POSSIBLE else None

    def read_bytes(self, path: str) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while part := os.read(descriptor, 1 << 20):
                    parts.append(part)
                return b"".join(parts)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(error, "read", path) from error

    def write_bytes(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise storage_error(error, "write", path) from error
        if durable:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> DirectoryLock:
        handle = _open_handle(path, create=True)
        try:
            # The first lock holds within one process too. The second is what Kafka takes, so that
            # neither broker starts beside the other.
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryLocked(os.path.dirname(path)) from error
            raise storage_error(error, "lock", path) from error
        return _FileLock(handle)

    def free_bytes(self, path: str) -> int:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise storage_error(error, "stat", path) from error
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise storage_error(error, "stat", path) from error
        return found.f_blocks * found.f_frsize
