"""Which data directories a broker has had, as each of them remembers."""

from __future__ import annotations

import pytest

from millrace.log.directories.known_directories import (
    KNOWN_DIRECTORIES,
    NOTHING_KNOWN,
    KnownDirectories,
    read_known,
    write_known,
)
from millrace.sim.volume import SimVolume

OLD = KnownDirectories(3, {"id-a": "/a"})
NEW = KnownDirectories(4, {"id-a": "/a", "id-b": "/b"})


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    for path in ("/a", "/b", "/c"):
        sim_volume.make_directory(path)
    return sim_volume


def test_new_directories_know_nothing(volume: SimVolume) -> None:
    assert read_known(volume, ["/a", "/b"]) == NOTHING_KNOWN


@pytest.mark.parametrize("order", [["/a", "/b", "/c"], ["/b", "/c", "/a"]])
def test_the_directory_with_the_latest_generation_counts_wherever_it_stands(
    volume: SimVolume, order: list[str]
) -> None:
    write_known(volume, "/a", OLD)
    write_known(volume, "/b", NEW)
    assert read_known(volume, order) == NEW


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"generation": 9}',
        b'{"generation": "x", "paths": {}}',
        b'{"generation": 9, "paths": 1}',
    ],
)
def test_a_damaged_file_counts_as_missing(volume: SimVolume, content: bytes) -> None:
    write_known(volume, "/a", OLD)
    volume.write_bytes(f"/b/{KNOWN_DIRECTORIES}", content)
    assert read_known(volume, ["/a", "/b"]) == OLD


def test_what_is_known_survives_a_power_loss(volume: SimVolume) -> None:
    write_known(volume, "/a", NEW)
    volume.crash()
    assert read_known(volume, ["/a"]) == NEW


def test_what_a_directory_knows_already_is_not_written_again(volume: SimVolume) -> None:
    write_known(volume, "/a", NEW)
    # It could not be written now.
    volume.is_read_only = True
    write_known(volume, "/a", KnownDirectories(4, {"id-b": "/b", "id-a": "/a"}))
    assert read_known(volume, ["/a"]) == NEW
