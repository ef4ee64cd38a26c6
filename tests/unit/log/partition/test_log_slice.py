"""A read of a log is a place in a file, read only when it is sent."""

from __future__ import annotations

import pytest

from millrace.log.partition.log_slice import EMPTY_SLICE, LogSlice
from millrace.sim.volume import SimVolume

PATH = "/d/file"


class CountingHandle:
    """A file of which reads are noted."""

    path = "/d/counted"

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def fileno(self) -> int:
        return -1

    def read_at(self, position: int, size_bytes: int) -> bytes:
        self.reads.append((position, size_bytes))
        return bytes(size_bytes)

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return False

    def sync(self) -> None:
        raise AssertionError("nobody writes here")

    def drop_cached(self, position: int, size_bytes: int) -> None:
        raise AssertionError("nobody drops anything here")


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory("/d")
    sim_volume.write_bytes(PATH, b"0123456789")
    return sim_volume


def test_a_slice_reads_its_part_of_the_file_and_no_more(volume: SimVolume) -> None:
    handle = volume.file(PATH).handle()
    assert LogSlice(handle, 2, 5, False).read() == b"23456"


def test_an_empty_slice_needs_no_file_and_no_disk() -> None:
    assert EMPTY_SLICE.read() == b""
    assert EMPTY_SLICE.size_bytes == 0
    assert not EMPTY_SLICE.is_cold()
    EMPTY_SLICE.warm()


def test_only_what_is_neither_new_nor_in_the_page_cache_could_wait_for_the_disk(volume: SimVolume) -> None:
    handle = volume.file(PATH).handle()
    assert not LogSlice(handle, 0, 10, False).is_cold()
    volume.cold_paths[PATH] = None
    assert LogSlice(handle, 0, 10, False).is_cold()
    assert not LogSlice(handle, 0, 10, True).is_cold()


def test_warming_reads_the_whole_slice_in_pieces_of_a_megabyte() -> None:
    handle = CountingHandle()
    LogSlice(handle, 100, (2 << 20) + 7, False).warm()
    assert handle.reads == [(100, 1 << 20), (100 + (1 << 20), 1 << 20), (100 + (2 << 20), 7)]
