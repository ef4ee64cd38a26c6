"""The directory of a new log: made with the topic's id, and never over somebody's records."""

from __future__ import annotations

import errno

import pytest

from millrace.log.directories.new_logs import NewLog, is_in_the_way, make_new_log, make_new_logs
from millrace.log.errors import DiskFull
from millrace.log.segments import checkpoints
from millrace.sim.volume import SimVolume
from tests.unit.log.support import OTHER_TOPIC_ID, TOPIC_ID

NEW = NewLog("/d/orders-0", TOPIC_ID, "/d/orders-0.1-stray")


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory("/d")
    return sim_volume


def test_a_new_log_has_a_directory_with_the_id_of_its_topic(volume: SimVolume) -> None:
    make_new_log(volume, NEW)
    assert checkpoints.read_partition_metadata(volume, NEW.path) == TOPIC_ID
    assert [entry.name for entry in volume.list_directory(NEW.path)] == [checkpoints.PARTITION_METADATA]
    assert not volume.exists(NEW.aside)


def test_what_an_earlier_attempt_left_is_used_again(volume: SimVolume) -> None:
    volume.make_directory(NEW.path)
    checkpoints.write_partition_metadata(volume, NEW.path, OTHER_TOPIC_ID, durable=False)
    assert not is_in_the_way(volume, NEW.path)
    make_new_log(volume, NEW)
    assert checkpoints.read_partition_metadata(volume, NEW.path) == TOPIC_ID
    assert not volume.exists(NEW.aside)


def test_records_under_the_same_name_are_kept_beside_and_not_in_the_new_log(volume: SimVolume) -> None:
    volume.make_directory(NEW.path)
    volume.write_bytes(f"{NEW.path}/{0:020}.log", b"somebody's records")
    assert is_in_the_way(volume, NEW.path)
    make_new_log(volume, NEW)
    assert volume.read_bytes(f"{NEW.aside}/{0:020}.log") == b"somebody's records"
    assert not is_in_the_way(volume, NEW.path)


def test_a_directory_that_is_not_there_is_in_nobodys_way(volume: SimVolume) -> None:
    assert not is_in_the_way(volume, "/d/nothing-0")


def test_each_of_several_logs_has_its_own_outcome(volume: SimVolume) -> None:
    other = NewLog("/d/orders-1", TOPIC_ID, "/d/orders-1.1-stray")
    third = NewLog("/d/orders-2", TOPIC_ID, "/d/orders-2.1-stray")
    volume.fail("create directory", errno.ENOSPC, path_contains="orders-1")
    outcomes = make_new_logs(volume, [NEW, other, third])
    assert [type(outcome) for outcome in outcomes] == [type(None), DiskFull, type(None)]
    assert checkpoints.read_partition_metadata(volume, third.path) == TOPIC_ID
    # It may be repeated after a failure.
    assert make_new_logs(volume, [other]) == [None]
