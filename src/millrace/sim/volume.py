"""A disk in memory that forgets what was not synced, tears writes, flips bits, fills up or fails on
command.

Content and names are separate, as on a real disk: a file's bytes last once the file is synced, its name
once the directory is. The seed decides what a crash takes.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from millrace.core.lanes import Waits
from millrace.log.disk.volume import Buffer, DirectoryEntry, DirectoryLock, storage_error
from millrace.log.errors import DirectoryLocked, FileMissing, StorageError

T = TypeVar("T")

UNBOUNDED: Final = 2**50
"""A capacity of more than any test writes."""
_SECTOR_BYTES: Final = 512


class SimInode:
    """A file's content: what the process sees, what the disk has, and the writes in between."""

    __slots__ = ("content", "durable", "modified_ms", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Position and bytes of a write; no bytes for a truncation to that position."""
        self.modified_ms = 0

    def persist(self, writes: list[tuple[int, bytes | None]]) -> None:
        """Let these writes reach the disk, and no others."""
        durable = self.durable
        for position, data in writes:
            if data is None:
                _truncate(durable, position)
            else:
                _write(durable, position, data)
        self.pending.clear()


@dataclass(slots=True)
class Fault:
    """An error that operations on paths meet: after so many of them, so many times."""

    operation: str
    code: int
    path_contains: str = ""
    after: int = 0
    times: int = 1
    path_ends: str = ""

    def strikes(self, operation: str, path: str) -> bool:
        if self.operation != operation or self.path_contains not in path or self.times == 0:
            return False
        if not path.endswith(self.path_ends):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class Shortage:
    """Something that the system is short of: a share of the calls that need it fail, by chance."""

    code: int
    operations: tuple[str, ...]
    share: float


class SimHandle:
    """An open file."""

    __slots__ = ("_volume", "inode", "path")

    def __init__(self, volume: SimVolume, path: str, inode: SimInode) -> None:
        self._volume = volume
        self.path = path
        self.inode = inode

    def fileno(self) -> int:
        return -1

    def read_at(self, position: int, size_bytes: int) -> bytes:
        self._volume.strike("read", self.path)
        return bytes(self.inode.content[position : position + size_bytes])

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return self.path not in self._volume.cold_paths

    def sync(self) -> None:
        self._volume.strike("sync", self.path)
        self._volume.synced_count += 1
        self.inode.persist(self.inode.pending)

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """Nothing is left to do: there is no cache."""


class SimFile:
    """A file by its path, opened anew for each call."""

    __slots__ = ("_create", "_volume", "path")

    def __init__(self, volume: SimVolume, path: str, *, create: bool) -> None:
        self._volume = volume
        self.path = path
        self._create = create

    def handle(self) -> SimHandle:
        inode = self._volume.inode(self.path, create=self._create)
        self._volume.strike("open", self.path)
        return SimHandle(self._volume, self.path, inode)

    def write_at(self, position: int, data: Buffer) -> None:
        self._volume.write(self.path, self.handle().inode, position, bytes(data))

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return self.handle().read_at(position, size_bytes)

    def size_bytes(self) -> int:
        inode = self._volume.names.get(self.path)
        if inode is None:
            if self._create:
                return 0
            raise FileMissing("stat", self.path, "no such file")
        return len(inode.content)

    def truncate(self, size_bytes: int) -> None:
        inode = self.handle().inode
        self._volume.strike("truncate", self.path)
        self._volume.refuse_if_read_only("truncate", self.path)
        _truncate(inode.content, size_bytes)
        inode.pending.append((size_bytes, None))

    def sync(self) -> None:
        self.handle().sync()

    def close(self) -> None:
        """Nothing is left to do: no file is kept open."""


class SimDisk:
    """The whole disk, held open. As on Linux, whoever opens it hears of write errors that nobody was told of
    before, and of those that come later, but not of those that somebody else was told of."""

    __slots__ = ("_path", "_told", "_volume")

    def __init__(self, volume: SimVolume, path: str) -> None:
        self._volume = volume
        self._path = path
        self._told = volume.write_errors_told

    def sync(self) -> None:
        volume = self._volume
        volume.sync_everything(self._path)
        if self._told < volume.write_errors:
            self._told = volume.write_errors_told = volume.write_errors
            raise storage_error(OSError(errno.EIO, os.strerror(errno.EIO)), "sync", self._path)


class _SimLock:
    def __init__(self, volume: SimVolume, path: str) -> None:
        self._volume = volume
        self._path = path

    def release(self) -> None:
        self._volume.locks.pop(self._path, None)


@dataclass(slots=True)
class SimVolume:
    """The disk of one host. Paths are plain strings; `chance` decides what a crash keeps and where a write
    tears."""

    chance: random.Random
    capacity_bytes: int = UNBOUNDED
    is_read_only: bool = False
    faults: list[Fault] = field(default_factory=list)
    shortage: Shortage | None = None
    cold_paths: dict[str, None] = field(default_factory=dict)
    synced_count: int = 0
    write_errors: int = 0
    """How often something that was in the page cache could not be written."""
    write_errors_told: int = 0
    """How many of them somebody was told of."""
    wall_ms: Callable[[], int] = lambda: 0
    """The time of day, for a file's last change, which retention falls back on."""
    names: dict[str, SimInode] = field(default_factory=dict)
    directories: dict[str, None] = field(default_factory=dict)
    locks: dict[str, None] = field(default_factory=dict)
    _durable_names: dict[str, SimInode] = field(default_factory=dict)
    _durable_directories: dict[str, None] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)
    """From the name that a directory has to the one that it has on the disk."""

    # The volume

    def lane(self, _waits: Waits, _path: str) -> None:
        """The simulator's loop does all work by itself."""

    def file(self, path: str, *, create: bool = False) -> SimFile:
        return SimFile(self, path, create=create)

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self.strike("list", path)
        if path not in self.directories:
            raise FileMissing("list", path, "no such directory")
        entries = [
            DirectoryEntry(os.path.basename(name), False, len(self.names[name].content))
            for name in _names_in(path, self.names)
        ]
        entries += [
            DirectoryEntry(os.path.basename(name), True, 0) for name in _names_in(path, self.directories)
        ]
        return sorted(entries)

    def modified_ms(self, path: str) -> int:
        self.strike("stat", path)
        return self.inode(path, create=False).modified_ms

    def make_directory(self, path: str) -> None:
        self.strike("create directory", path)
        self.refuse_if_read_only("create directory", path)
        while path not in self.directories:
            self.directories[path] = None
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        self.strike("rename", source)
        self.refuse_if_read_only("rename", source)
        if source in self.names:
            self.names[target] = self.names.pop(source)
        elif source in self.directories:
            self._rename_tree(source, target)
        else:
            raise FileMissing("rename", source, "no such file")

    def _rename_tree(self, source: str, target: str) -> None:
        if target in self.directories:
            raise storage_error(OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY)), "rename", source)
        _move_below(self.names, source, target)
        _move_below(self.directories, source, target)
        # The content of a directory goes with it, also on the disk, once the new name is there.
        self._renamed[target] = self._renamed.pop(source, source)

    def remove(self, path: str) -> None:
        self.strike("remove", path)
        self.refuse_if_read_only("remove", path)
        self.names.pop(path, None)

    def remove_tree(self, path: str) -> None:
        self.strike("remove", path)
        self.refuse_if_read_only("remove", path)
        for name in [name for name in self.names if name.startswith(path + "/")]:
            del self.names[name]
        for name in [name for name in self.directories if name == path or name.startswith(path + "/")]:
            del self.directories[name]

    def sync_directory(self, path: str) -> None:
        self.strike("open", path)
        self.strike("sync", path)
        if path not in self.directories:
            raise FileMissing("sync", path, "no such directory")
        self._persist_names(path)

    def whole_disk(self, path: str) -> SimDisk:
        self.strike("open", path)
        if path not in self.directories:
            raise FileMissing("open", path, "no such directory")
        return SimDisk(self, path)

    def sync_everything(self, path: str) -> None:
        """Sync the whole disk, which was opened under this path."""
        self.strike("sync", path)
        self.synced_count += 1
        for inode in self.names.values():
            inode.persist(inode.pending)
        for directory in list(self.directories):
            self._persist_names(directory)

    def _persist_names(self, path: str) -> None:
        for target in [name for name in self._renamed if path in (name, os.path.dirname(name))]:
            source = self._renamed.pop(target)
            _move_below(self._durable_names, source, target)
            _move_below(self._durable_directories, source, target)
        self._sync_names(self._durable_names, self.names, path)
        self._sync_names(self._durable_directories, self.directories, path)
        while path and path not in self._durable_directories and path in self.directories:
            self._durable_directories[path] = None
            path = os.path.dirname(path)

    def _sync_names(self, durable: dict[str, T], current: dict[str, T], directory: str) -> None:
        for name in [name for name in _names_in(directory, durable) if name not in current]:
            del durable[name]
            for below in [other for other in self._durable_names if other.startswith(name + "/")]:
                del self._durable_names[below]
        durable.update({name: current[name] for name in _names_in(directory, current)})

    def read_bytes(self, path: str) -> bytes:
        inode = self.inode(path, create=False)
        self.strike("open", path)
        self.strike("read", path)
        return bytes(inode.content)

    def write_bytes(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        file = self.file(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            if durable:
                file.sync()
            self.rename(temporary, path)
        except StorageError:
            self.names.pop(temporary, None)
            raise
        if durable:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> DirectoryLock:
        if path in self.locks:
            raise DirectoryLocked(os.path.dirname(path))
        self.strike("open", path)
        self.inode(path, create=True)
        self.locks[path] = None
        return _SimLock(self, path)

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes

    def free_bytes(self, path: str) -> int:
        self.strike("stat", path)
        return max(self.capacity_bytes - self.used_bytes(), 0)

    # What files ask

    def inode(self, path: str, *, create: bool) -> SimInode:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileMissing("open", path, "no such file")
            self.strike("create", path)
            self.refuse_if_read_only("open", path)
            if os.path.dirname(path) not in self.directories:
                raise FileMissing("open", path, "no such directory")
            inode = self.names[path] = SimInode()
        return inode

    def write(self, path: str, inode: SimInode, position: int, data: bytes) -> None:
        try:
            self.strike("write", path)
        except Exception:
            # A failed write may have reached the file in part.
            self._put(inode, position, data[: self.chance.randrange(len(data) + 1)])
            raise
        self.refuse_if_read_only("write", path)
        growth = max(position + len(data) - len(inode.content), 0)
        is_bounded = growth > 0 and self.capacity_bytes < UNBOUNDED
        room = self.capacity_bytes - self.used_bytes() if is_bounded else growth
        if growth > room:
            self._put(inode, position, data[: max(len(data) - growth + max(room, 0), 0)])
            raise storage_error(OSError(errno.ENOSPC, "No space left on device"), "write", path)
        self._put(inode, position, data)

    def _put(self, inode: SimInode, position: int, data: bytes) -> None:
        if data:
            _write(inode.content, position, data)
            inode.pending.append((position, data))
            inode.modified_ms = self.wall_ms()

    def strike(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.strikes(operation, path):
                raise storage_error(OSError(fault.code, os.strerror(fault.code)), operation, path)
        shortage = self.shortage
        if (
            shortage is not None
            and operation in shortage.operations
            and self.chance.random() < shortage.share
        ):
            raise storage_error(OSError(shortage.code, os.strerror(shortage.code)), operation, path)

    def refuse_if_read_only(self, operation: str, path: str) -> None:
        if self.is_read_only:
            raise storage_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), operation, path)

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.names.values())

    # What a test does to it

    def fail(
        self, operation: str, code: int, *, path_contains: str = "", after: int = 0, times: int = 1
    ) -> None:
        """Let operations fail: open, create, read, write, truncate, sync, rename, remove, list, stat, create
        directory."""
        self.faults.append(Fault(operation, code, path_contains, after, times))

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage a file as the disk itself does: the damage survives a crash."""
        inode = self.inode(path, create=False)
        inode.content[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit

    def crash(self, *, lose_everything: bool = True) -> None:
        """Lose power. Synced data stays; of the rest nothing stays, or what the seed says."""
        keeps_names = not lose_everything and self.chance.random() < 0.5
        if not keeps_names:
            self.names = dict(self._durable_names)
            self.directories = dict(self._durable_directories)
        for inode in self.names.values():
            inode.persist([] if lose_everything else self._survivors(inode.pending))
            inode.content = bytearray(inode.durable)
        self._durable_names = dict(self.names)
        self._durable_directories = dict(self.directories)
        self._renamed.clear()
        self.locks.clear()
        self.faults.clear()
        self.shortage = None

    def hand_over(self) -> SimVolume:
        """The same disk for the next process. Whoever still holds this object has an empty disk in hand."""
        heir = SimVolume(self.chance, self.capacity_bytes, self.is_read_only)
        heir.cold_paths, self.cold_paths = self.cold_paths, {}
        heir.synced_count = self.synced_count
        heir.wall_ms = self.wall_ms
        heir.names, self.names = self.names, {}
        heir.directories, self.directories = self.directories, {}
        heir._durable_names, self._durable_names = self._durable_names, {}
        heir._durable_directories, self._durable_directories = self._durable_directories, {}
        heir._renamed, self._renamed = self._renamed, {}
        return heir

    def _survivors(self, pending: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        """A prefix of the writes, the last of them torn at a sector, and now and then a hole before it."""
        chance = self.chance
        kept = pending[: chance.randrange(len(pending) + 1)]
        if kept and kept[-1][1]:
            position, data = kept[-1]
            assert data is not None
            kept[-1] = position, data[: chance.randrange(len(data) + 1) // _SECTOR_BYTES * _SECTOR_BYTES]
        if len(kept) > 2 and chance.random() < 0.2:
            del kept[chance.randrange(len(kept) - 1)]
        return kept


def _names_in(directory: str, paths: Iterable[str]) -> list[str]:
    """The paths in a directory itself, not in those below it. Every flush asks, so it has to be fast."""
    prefix = directory if directory.endswith("/") else directory + "/"
    start = len(prefix)
    return [
        path for path in paths if path.startswith(prefix) and path.find("/", start) < 0 and len(path) > start
    ]


def _move_below(paths: dict[str, T], source: str, target: str) -> None:
    for path in [path for path in paths if path == source or path.startswith(source + "/")]:
        paths[target + path[len(source) :]] = paths.pop(path)


def _write(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _truncate(content: bytearray, size_bytes: int) -> None:
    if len(content) > size_bytes:
        del content[size_bytes:]
    else:
        content.extend(bytes(size_bytes - len(content)))
