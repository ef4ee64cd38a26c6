"""The files of a data directory, found and named."""

from __future__ import annotations

import pytest

from millrace.log.errors import FileMissing
from millrace.log.inspection.stored_files import FileKind, StoredFile, find_files, read_checkpoint
from millrace.log.segments import checkpoints
from millrace.sim.volume import SimVolume

LOG = "/data/orders-0"


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory(LOG)
    return sim_volume


def only(volume: SimVolume, name: str, data: bytes = b"123") -> StoredFile:
    volume.write_bytes(f"{LOG}/{name}", data)
    (found,) = find_files(volume, f"{LOG}/{name}")
    return found


@pytest.mark.parametrize(
    "name, kind, base_offset",
    [
        (f"{42:020}.log", FileKind.LOG, 42),
        (f"{42:020}.index", FileKind.OFFSET_INDEX, 42),
        (f"{42:020}.timeindex", FileKind.TIME_INDEX, 42),
        (f"{42:020}.txnindex", FileKind.TXN_INDEX, 42),
        (f"{42:020}.snapshot", FileKind.SNAPSHOT, 42),
        (f"{42:020}.quarantine", FileKind.QUARANTINE, 42),
        (f"{42:020}.log.cleaned", FileKind.LOG, 42),
        (f"{42:020}.index.swap", FileKind.OFFSET_INDEX, 42),
        (f"{42:020}.log.deleted", FileKind.LOG, 42),
        ("42.log", FileKind.LOG, -1),
        ("leader-epoch-checkpoint", FileKind.LEADER_EPOCHS, -1),
        ("partition.metadata", FileKind.PARTITION_METADATA, -1),
        ("meta.properties", FileKind.PROPERTIES, -1),
        (checkpoints.RECOVERY_POINTS, FileKind.OFFSET_CHECKPOINT, -1),
        ("notes.txt", FileKind.OTHER, -1),
    ],
)
def test_a_file_is_known_by_its_name(volume: SimVolume, name: str, kind: FileKind, base_offset: int) -> None:
    found = only(volume, name)
    assert (found.kind, found.base_offset, found.size_bytes) == (kind, base_offset, 3)
    assert (found.directory, found.name) == (LOG, name)


def test_a_data_directory_shows_its_own_files_and_then_those_of_each_partition(volume: SimVolume) -> None:
    volume.make_directory("/data/orders-1")
    volume.make_directory("/data/orders-2.ab-delete")
    for path in (
        "/data/meta.properties",
        f"{LOG}/{0:020}.log",
        f"{LOG}/{5:020}.log.deleted",
        f"/data/orders-1/{7:020}.log",
        f"/data/orders-2.ab-delete/{9:020}.log",
    ):
        volume.write_bytes(path, b"1")
    found = [file.path for file in find_files(volume, "/data")]
    assert found == ["/data/meta.properties", f"{LOG}/{0:020}.log", f"/data/orders-1/{7:020}.log"]


@pytest.mark.parametrize("path", ["/data/nothing", "/nowhere/at/all"])
def test_a_path_that_is_not_there_is_told_by_its_name(volume: SimVolume, path: str) -> None:
    with pytest.raises(FileMissing, match=path):
        find_files(volume, path)


def test_the_rows_of_checkpoints_are_read(volume: SimVolume) -> None:
    rows = checkpoints.format_lines(["orders 0 17", "orders 1 4"])
    found = only(volume, checkpoints.RECOVERY_POINTS, rows)
    assert read_checkpoint(volume, found) == [("orders", 0, 17), ("orders", 1, 4)]
    found = only(volume, "leader-epoch-checkpoint", checkpoints.format_lines(["0 0", "3 12"]))
    assert read_checkpoint(volume, found) == [("", 0, 0), ("", 3, 12)]


@pytest.mark.parametrize("content", [b"", b"0\n2\norders 0 17\n", b"0\n1\norders 0\n", b"0\n1\norders 0 x\n"])
def test_a_checkpoint_that_is_not_whole_has_no_rows(volume: SimVolume, content: bytes) -> None:
    assert read_checkpoint(volume, only(volume, checkpoints.RECOVERY_POINTS, content)) is None
