"""Several renames that happen together or not at all."""

from __future__ import annotations

import errno

import pytest

from millrace.log.disk.renames import rename_all, rename_back
from millrace.log.errors import HalfRenamed, StorageError
from millrace.sim.volume import SimVolume

PAIRS = [(f"/d/{name}", f"/d/{name}.new") for name in "abc"]


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory("/d")
    for source, _ in PAIRS:
        sim_volume.write_bytes(source, source.encode())
    return sim_volume


def names(volume: SimVolume) -> list[str]:
    return [entry.name for entry in volume.list_directory("/d")]


def test_all_files_get_their_new_names_and_keep_their_content(volume: SimVolume) -> None:
    assert rename_all(volume, PAIRS) == PAIRS
    assert names(volume) == ["a.new", "b.new", "c.new"]
    assert volume.read_bytes("/d/b.new") == b"/d/b"


def test_a_missing_source_is_passed_over_and_not_among_those_renamed(volume: SimVolume) -> None:
    volume.remove("/d/b")
    assert rename_all(volume, PAIRS) == [PAIRS[0], PAIRS[2]]
    assert names(volume) == ["a.new", "c.new"]


def test_a_failure_gives_those_before_it_their_old_names_back(volume: SimVolume) -> None:
    volume.fail("rename", errno.EIO, path_contains="/d/c")
    with pytest.raises(StorageError):
        rename_all(volume, PAIRS)
    assert names(volume) == ["a", "b", "c"]


def test_what_cannot_be_undone_is_told_as_half_renamed(volume: SimVolume) -> None:
    volume.fail("rename", errno.EIO, path_contains="/d/c")
    volume.fail("rename", errno.EIO, path_contains="/d/a.new")
    with pytest.raises(HalfRenamed, match=r"/d/a\.new"):
        rename_all(volume, PAIRS)
    # The last one is undone first, so that only the first is left.
    assert names(volume) == ["a.new", "b", "c"]


def test_renames_are_undone_from_the_last_to_the_first(volume: SimVolume) -> None:
    chain = [("/d/b", "/d/x"), ("/d/a", "/d/b")]
    rename_back(volume, rename_all(volume, chain))
    assert names(volume) == ["a", "b", "c"]
    assert volume.read_bytes("/d/a") == b"/d/a"
