"""A search in a large index: what it finds, whatever happened to the index before, and what it reads."""

from __future__ import annotations

import random
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from millrace.log.disk.volume import DiskVolume, VolumeFile
from millrace.log.segments.offset_index import OffsetIndex


class CountedFile:
    """A file that tells how often it was read."""

    def __init__(self, file: VolumeFile) -> None:
        self._file = file
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, position: int, size_bytes: int) -> bytes:
        self.reads += 1
        return self._file.read_at(position, size_bytes)


def grow(index: OffsetIndex, model: list[tuple[int, int]], count: int, choose: random.Random) -> None:
    offset, position = model[-1] if model else (-1, -5000)
    for _ in range(count):
        offset += choose.randrange(1, 40)
        position += choose.randrange(4097, 9000)
        index.append(offset, position=position)
        model.append((offset, position))


@pytest.mark.parametrize("seed", range(5))
def test_searches_agree_with_a_plain_list_while_the_index_grows_and_is_cut(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    file = DiskVolume().file(f"{tmp_path}/i", create=True)
    index = OffsetIndex(file, base_offset=0, stored_size_bytes=0)
    model: list[tuple[int, int]] = []
    for _ in range(12):
        grow(index, model, choose.randrange(1, 1500), choose)
        if choose.random() < 0.8:
            index.store()
        if choose.random() < 0.4:
            keep = choose.randrange(len(model))
            index.truncate_to(model[keep][0])
            del model[keep:]
            grow(index, model, 3, choose)
        for _ in range(200):
            offset = choose.randrange(-1, model[-1][0] + 10)
            position = choose.randrange(model[-1][1] + 10_000)
            number = bisect_right(model, (offset, 2**40))
            assert index.find(0, offset) == (model[number - 1] if number else None)
            number = bisect_right([each for _, each in model], position)
            assert index.find(1, position) == (model[number - 1] if number else None)


def test_a_search_that_was_here_before_reads_its_last_block_only(tmp_path: Path) -> None:
    """Fetches from all over a large log paid for each step of their search with a read of the file."""
    file = CountedFile(DiskVolume().file(f"{tmp_path}/i", create=True))
    index = OffsetIndex(file, base_offset=0, stored_size_bytes=0)
    model: list[tuple[int, int]] = []
    choose = random.Random(1)
    grow(index, model, 20_000, choose)
    index.store()
    for _ in range(2_000):
        index.find(0, choose.randrange(model[-1][0]))
    reads = file.reads
    for _ in range(100):
        index.find(0, choose.randrange(model[-1][0]))
    assert file.reads - reads <= 100
    grow(index, model, 600, choose)
    index.store()
    reads = file.reads
    for _ in range(100):
        index.find(0, choose.randrange(model[-1][0]))
    # A block or two are new; what was known of the others still is.
    assert file.reads - reads <= 103
