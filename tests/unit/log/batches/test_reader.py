"""Walking a stored segment: whole batches whatever the size of a read, and no length that cannot be."""

from __future__ import annotations

import pytest

from millrace.log.batches.reader import read_batches
from millrace.sim.volume import SimVolume
from millrace.wire.record_spans import MalformedBatch
from tests.unit.log.support import batch_of

BATCHES = [bytes(batch_of(bytes(size), base_offset=number)) for number, size in enumerate((10, 3000, 1, 200))]


def stored(volume: SimVolume, data: bytes) -> tuple[str, int]:
    volume.make_directory("/data")
    volume.write_bytes("/data/segment", data)
    return "/data/segment", len(data)


@pytest.mark.parametrize("read_bytes", [64, 100, 500, 1 << 20])
def test_all_batches_come_whole_and_with_their_positions(sim_volume: SimVolume, read_bytes: int) -> None:
    path, size_bytes = stored(sim_volume, b"".join(BATCHES))
    found = list(read_batches(sim_volume.file(path), size_bytes, read_bytes=read_bytes))
    assert [bytes(batch) for _, batch in found] == BATCHES
    starts = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES))]
    assert [position for position, _ in found] == starts


def test_a_walk_may_begin_at_any_batch(sim_volume: SimVolume) -> None:
    path, size_bytes = stored(sim_volume, b"".join(BATCHES))
    found = read_batches(sim_volume.file(path), size_bytes, start=len(BATCHES[0]))
    assert [bytes(batch) for _, batch in found] == BATCHES[1:]


@pytest.mark.parametrize("length", [-1, 0, 48, 1 << 30])
def test_a_length_that_cannot_be_is_not_followed(sim_volume: SimVolume, length: int) -> None:
    damaged = BATCHES[0][:8] + length.to_bytes(4, "big", signed=True) + BATCHES[0][12:]
    path, size_bytes = stored(sim_volume, BATCHES[3] + damaged)
    batches = read_batches(sim_volume.file(path), size_bytes)
    assert bytes(next(batches)[1]) == BATCHES[3]
    with pytest.raises(MalformedBatch):
        next(batches)


def test_a_file_that_ends_within_a_header_is_malformed(sim_volume: SimVolume) -> None:
    path, size_bytes = stored(sim_volume, BATCHES[0] + b"torn")
    with pytest.raises(MalformedBatch):
        list(read_batches(sim_volume.file(path), size_bytes))
