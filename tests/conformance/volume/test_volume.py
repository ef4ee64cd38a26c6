"""What storage relies on, asked of the real disk and of the simulated one."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.log.disk.volume import DiskVolume, Volume, storage_error
from millrace.log.errors import (
    DirectoryLocked,
    DiskFailed,
    DiskFull,
    FileMissing,
    ReadOnlyDisk,
    StorageError,
    TooManyOpenFiles,
)
from millrace.sim.volume import SimVolume


@dataclass
class Place:
    volume: Volume
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


@pytest.fixture(params=["disk", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(DiskVolume(open_files_max=2), str(tmp_path))
    else:
        volume = SimVolume(random.Random(1))
        volume.make_directory("/data")
        yield Place(volume, "/data")


def test_bytes_are_read_where_they_were_written(place: Place) -> None:
    file = place.volume.file(place.path("a"), create=True)
    file.write_at(0, b"hello")
    file.write_at(3, memoryview(bytearray(b"LOW")))
    assert file.read_at(0, 100) == b"helLOW"
    assert file.read_at(4, 1) == b"O"
    assert file.read_at(50, 10) == b""
    assert file.size_bytes() == 6


def test_a_write_behind_the_end_leaves_zeros(place: Place) -> None:
    file = place.volume.file(place.path("a"), create=True)
    file.write_at(4, b"x")
    assert file.read_at(0, 10) == b"\0\0\0\0x"


def test_truncation_cuts_and_extends(place: Place) -> None:
    file = place.volume.file(place.path("a"), create=True)
    file.write_at(0, b"hello")
    file.truncate(2)
    assert file.read_at(0, 10) == b"he"
    file.truncate(4)
    assert file.read_at(0, 10) == b"he\0\0"


def test_a_file_that_is_not_there_is_not_made_by_reading(place: Place) -> None:
    file = place.volume.file(place.path("absent"))
    with pytest.raises(FileMissing):
        file.read_at(0, 1)
    with pytest.raises(FileMissing):
        file.size_bytes()
    with pytest.raises(FileMissing):
        place.volume.read_bytes(place.path("absent"))
    assert not place.volume.exists(place.path("absent"))


def test_more_files_than_may_be_open_can_be_used(place: Place) -> None:
    files = [place.volume.file(place.path(f"f{number}"), create=True) for number in range(10)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.write_at(turn, bytes([65 + number]))
    assert [file.read_at(0, 3) for file in files] == [bytes([65 + number]) * 3 for number in range(10)]
    if isinstance(place.volume, DiskVolume):
        assert place.volume.pool.open_count <= 2


def test_a_held_handle_outlives_the_pool_and_the_name(place: Place) -> None:
    """A response half sent must not lose its file because others were opened or the segment was deleted."""
    file = place.volume.file(place.path("a"), create=True)
    file.write_at(0, b"still here")
    handle = file.handle()
    for number in range(5):
        place.volume.file(place.path(f"other{number}"), create=True).write_at(0, b"x")
    place.volume.rename(place.path("a"), place.path("a.deleted"))
    place.volume.remove(place.path("a.deleted"))
    assert handle.read_at(0, 100) == b"still here"
    assert handle.is_cached(0, 10)


def test_rename_replaces_and_remove_forgives(place: Place) -> None:
    place.volume.write_bytes(place.path("old"), b"old")
    place.volume.write_bytes(place.path("new"), b"new")
    place.volume.rename(place.path("new"), place.path("old"))
    assert place.volume.read_bytes(place.path("old")) == b"new"
    assert not place.volume.exists(place.path("new"))
    place.volume.remove(place.path("new"))
    with pytest.raises(FileMissing):
        place.volume.rename(place.path("new"), place.path("old"))


def test_directories_are_listed_in_order_with_sizes(place: Place) -> None:
    place.volume.make_directory(place.path("d/below"))
    place.volume.write_bytes(place.path("d/b"), b"22")
    place.volume.write_bytes(place.path("d/a"), b"1")
    assert [tuple(entry) for entry in place.volume.list_directory(place.path("d"))] == [
        ("a", False, 1),
        ("b", False, 2),
        ("below", True, 0),
    ]
    place.volume.rename(place.path("d"), place.path("e"))
    assert place.volume.read_bytes(place.path("e/a")) == b"1"
    place.volume.remove_tree(place.path("e"))
    place.volume.remove_tree(place.path("e"))
    assert not place.volume.exists(place.path("e"))
    with pytest.raises(FileMissing):
        place.volume.list_directory(place.path("e"))


def test_a_small_file_is_replaced_as_a_whole(place: Place) -> None:
    place.volume.write_bytes(place.path("c"), b"first and long")
    place.volume.write_bytes(place.path("c"), b"second", durable=False)
    assert place.volume.read_bytes(place.path("c")) == b"second"
    assert [entry.name for entry in place.volume.list_directory(place.root)] == ["c"]


def test_a_lock_is_held_once(place: Place) -> None:
    lock = place.volume.lock(place.path(".lock"))
    with pytest.raises(DirectoryLocked):
        place.volume.lock(place.path(".lock"))
    lock.release()
    place.volume.lock(place.path(".lock")).release()


def test_free_space_is_told(place: Place) -> None:
    assert place.volume.free_bytes(place.root) > 0


@pytest.mark.parametrize(
    "code, kind",
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, ReadOnlyDisk),
        (errno.EACCES, ReadOnlyDisk),
        (errno.EIO, DiskFailed),
        (errno.ENOENT, FileMissing),
        (errno.EMFILE, TooManyOpenFiles),
    ],
)
def test_the_systems_errors_become_ours(code: int, kind: type[Exception]) -> None:
    assert type(storage_error(OSError(code, os.strerror(code)), "write", "/x")) is kind


def test_a_full_device_is_told_as_such() -> None:
    file = DiskVolume().file("/dev/full")
    with pytest.raises(DiskFull):
        file.write_at(0, b"x")


# The simulated disk's own promises


def sim() -> SimVolume:
    volume = SimVolume(random.Random(1))
    volume.make_directory("/data")
    volume.sync_directory("/")
    volume.sync_directory("/data")
    return volume


def test_a_crash_keeps_what_was_synced_and_nothing_else() -> None:
    volume = sim()
    file = volume.file("/data/a", create=True)
    file.write_at(0, b"synced")
    file.sync()
    volume.sync_directory("/data")
    file.write_at(6, b" lost")
    volume.crash()
    assert volume.file("/data/a").read_at(0, 100) == b"synced"


def test_a_name_that_was_not_synced_is_gone() -> None:
    volume = sim()
    file = volume.file("/data/a", create=True)
    file.write_at(0, b"synced")
    file.sync()
    volume.crash()
    assert not volume.exists("/data/a")


def test_a_rename_that_was_not_synced_is_undone() -> None:
    volume = sim()
    volume.write_bytes("/data/a", b"old")
    volume.write_bytes("/data/a", b"new", durable=False)
    volume.crash()
    assert volume.read_bytes("/data/a") == b"old"


def test_a_full_disk_tears_the_write_and_takes_more_when_there_is_room() -> None:
    volume = sim()
    volume.capacity_bytes = 10
    file = volume.file("/data/a", create=True)
    with pytest.raises(DiskFull):
        file.write_at(0, b"0123456789abcdef")
    assert file.size_bytes() == 10
    file.truncate(0)
    volume.capacity_bytes = 100
    file.write_at(0, b"0123456789abcdef")
    assert file.size_bytes() == 16


def test_faults_strike_where_and_when_they_are_told() -> None:
    volume = sim()
    file = volume.file("/data/a", create=True)
    volume.fail("write", errno.EIO, path_contains="/a", after=1)
    file.write_at(0, b"fine")
    with pytest.raises(DiskFailed):
        file.write_at(4, b"bad")
    file.write_at(4, b"fine")
    volume.is_read_only = True
    with pytest.raises(ReadOnlyDisk):
        file.write_at(0, b"x")
    assert file.read_at(0, 4) == b"fine"


def test_a_flipped_bit_survives_a_crash() -> None:
    volume = sim()
    volume.write_bytes("/data/a", b"\0")
    volume.flip_bit("/data/a", 0, 3)
    volume.crash()
    assert volume.read_bytes("/data/a") == b"\x08"


def test_the_same_seed_loses_the_same() -> None:
    def survivors(seed: int) -> bytes:
        volume = SimVolume(random.Random(seed))
        volume.make_directory("/data")
        file = volume.file("/data/a", create=True)
        volume.sync_directory("/data")
        for number in range(20):
            file.write_at(number * 600, bytes([number]) * 600)
        volume.crash(lose_everything=False)
        return volume.file("/data/a", create=True).read_at(0, 20_000)

    assert [survivors(seed) for seed in range(10)] == [survivors(seed) for seed in range(10)]
    assert len({survivors(seed) for seed in range(10)}) > 1


def test_everything_can_be_synced_at_once(place: Place) -> None:
    disk = place.volume.whole_disk(place.root)
    if disk is None:
        pytest.skip("needs Linux 5.8 or newer")
    place.volume.make_directory(place.path("below"))
    file = place.volume.file(place.path("below/a"), create=True)
    file.write_at(0, b"hello")
    disk.sync()
    disk.sync()
    assert file.read_at(0, 5) == b"hello"
    with pytest.raises(StorageError):
        place.volume.whole_disk(place.path("absent"))


def test_a_crash_keeps_what_was_synced_all_at_once() -> None:
    volume = SimVolume(random.Random(1))
    volume.make_directory("/data/below")
    volume.file("/data/below/a", create=True).write_at(0, b"kept")
    volume.file("/data/old", create=True).write_at(0, b"moved")
    volume.rename("/data/old", "/data/new")
    volume.whole_disk("/data").sync()
    volume.file("/data/below/a").write_at(4, b"lost")
    volume.file("/data/late", create=True).write_at(0, b"lost")
    volume.crash()
    assert volume.read_bytes("/data/below/a") == b"kept"
    assert volume.read_bytes("/data/new") == b"moved"
    assert not volume.exists("/data/old")
    assert not volume.exists("/data/late")
