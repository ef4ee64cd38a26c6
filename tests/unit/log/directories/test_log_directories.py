"""Several data directories: where logs go, what is left when one of them is gone, and what must not be made
anew then."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from millrace.core.ids import TopicId, TopicPartition, is_one_bit_off
from millrace.log.errors import (
    DirectoryLocked,
    DuplicateLog,
    LogDirectoryOffline,
    NoSuchDirectory,
    ReadOnlyDisk,
    StorageError,
)
from millrace.log.segments.checkpoints import read_partition_metadata, write_partition_metadata
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks
from tests.unit.log.support import OTHER_TOPIC_ID, PARTITION, TOPIC_ID, append, read_values

OTHER = TopicPartition("orders", 1)
THIRD = TopicPartition("orders", 2)
REPLICAS = [(partition, TOPIC_ID) for partition in (PARTITION, OTHER)]


@pytest.fixture
def disks(sim_volume: SimVolume) -> Iterator[Disks]:
    disks = Disks(sim_volume)
    yield disks
    disks.dispose()


def test_a_new_log_goes_where_there_are_fewest_or_where_it_is_asked_for(disks: Disks) -> None:
    disks.log(PARTITION)
    disks.log(OTHER)
    assert [disks.home(PARTITION), disks.home(OTHER)] == ["/a", "/b"]
    disks.directories.prefer(THIRD, disks.directories.at("/b"))
    disks.log(THIRD)
    assert disks.home(THIRD) == "/b"
    fourth = THIRD._replace(partition=3)
    disks.log(fourth)
    assert disks.home(fourth) == "/a"
    with pytest.raises(NoSuchDirectory):
        disks.directories.at("/c")


def test_a_full_directory_leaves_new_logs_to_the_other(disks: Disks, sim_volume: SimVolume) -> None:
    sim_volume.fail("write", errno.ENOSPC, path_contains="/a/", times=100)
    append(disks.log(PARTITION), b"a")
    assert disks.home(PARTITION) == "/b"
    # What the attempt has left in the full one is no log: it kept the broker from starting again.
    sim_volume.faults.clear()
    disks.close()
    disks.open()
    assert disks.home(PARTITION) == "/b"
    assert read_values(disks.log(PARTITION)) == [(0, b"a")]


def test_a_log_whose_id_has_a_flipped_bit_on_disk_is_the_topics_still(
    disks: Disks, sim_volume: SimVolume
) -> None:
    """It was put aside as a log of another topic, and an empty one begun in its place."""
    append(disks.log(PARTITION), b"kept")
    append(disks.log(OTHER), b"of another")
    path, path_of_other = disks.log(PARTITION).path, disks.log(OTHER).path
    disks.close()
    near = TopicId(bytes([TOPIC_ID[0] ^ 0x10]) + TOPIC_ID[1:])
    assert is_one_bit_off(near, TOPIC_ID)
    write_partition_metadata(sim_volume, path, near)
    write_partition_metadata(sim_volume, path_of_other, OTHER_TOPIC_ID)
    disks.open()
    disks.directories.doubt_ids({"orders": TOPIC_ID})
    assert read_values(disks.log(PARTITION)) == [(0, b"kept")]
    assert read_partition_metadata(sim_volume, path) == TOPIC_ID
    # An id that no flipped bit explains is that of another topic.
    assert read_values(disks.log(OTHER)) == []


def test_a_failing_directory_takes_only_its_own_logs_along(disks: Disks, sim_volume: SimVolume) -> None:
    first, second = disks.log(PARTITION), disks.log(OTHER)
    failed: list[str] = []
    disks.directories.tell_of_offline(lambda: failed.extend(disks.directories.offline))
    sim_volume.fail("write", errno.EIO, path_contains="/b/orders-1")
    with pytest.raises(StorageError):
        append(second, b"lost")
    assert failed == ["/b"]
    assert disks.directories.offline_reason is None
    assert list(disks.directories.offline) == ["/b"]
    append(first, b"goes on")
    with pytest.raises(LogDirectoryOffline):
        append(second, b"refused")
    disks.log(THIRD)
    assert disks.home(THIRD) == "/a"
    # Each has its own mark of an orderly end.
    disks.close()
    assert sim_volume.exists("/a/.kafka_cleanshutdown")
    assert not sim_volume.exists("/b/.kafka_cleanshutdown")
    disks.open()
    assert list(disks.directories.recovered) == [OTHER]


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOENT])
def test_a_directory_that_refuses_writes_is_given_up(disks: Disks, sim_volume: SimVolume, code: int) -> None:
    log = disks.log(PARTITION)
    append(log, b"a")
    sim_volume.fail("write", code, path_contains="/a/orders-0", times=5)
    with pytest.raises(StorageError):
        append(log, b"b")
    assert list(disks.directories.offline) == ["/a"]


def test_a_disk_that_was_unmounted_is_noticed(disks: Disks, sim_volume: SimVolume) -> None:
    append(disks.log(PARTITION), b"a")
    directory = disks.directories.at("/a")
    sim_volume.remove("/a/.lock")
    with pytest.raises(StorageError, match="gone"):
        disks.run(directory._check_presence())


def test_logs_of_a_directory_that_cannot_be_used_are_not_made_anew(
    disks: Disks, sim_volume: SimVolume
) -> None:
    append(disks.log(PARTITION), b"a")
    append(disks.log(OTHER), b"b")
    ids = disks.directory_ids
    disks.close()
    sim_volume.fail("list", errno.EIO, path_contains="/b", times=1)
    disks.open()
    assert list(disks.directories.offline) == ["/b"]
    assert disks.directory_ids == ids
    assert disks.directories.expect(REPLICAS) == [(TOPIC_ID, 1)]
    with pytest.raises(LogDirectoryOffline):
        disks.log(OTHER)
    # One that nobody has seen before is another matter, and so is one that went away meanwhile.
    assert disks.log(THIRD).log_end_offset == 0
    disks.directories.forget_unreachable(TOPIC_ID, 1)
    assert disks.log(OTHER).log_end_offset == 0
    assert disks.home(OTHER) == "/a"


def test_a_directory_that_is_suddenly_empty_waits_for_its_disk(disks: Disks, sim_volume: SimVolume) -> None:
    append(disks.log(PARTITION), b"a")
    append(disks.log(OTHER), b"b")
    disks.close()
    sim_volume.rename("/b", "/unmounted")
    disks.open()
    assert "is its disk mounted" in disks.directories.offline["/b"]
    disks.directories.expect(REPLICAS)
    with pytest.raises(LogDirectoryOffline):
        disks.log(OTHER)
    assert not disks.directories.has_lost
    # And once more: what is known is not forgotten.
    disks.close()
    disks.open()
    assert "/b" in disks.directories.offline
    disks.close()
    sim_volume.remove_tree("/b")
    sim_volume.rename("/unmounted", "/b")
    disks.open()
    assert disks.directories.offline == {}
    assert disks.directories.expect(REPLICAS) == []
    log = disks.log(OTHER)
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(0, b"b")]


def test_an_empty_disk_is_taken_when_the_old_one_was_given_up(disks: Disks, sim_volume: SimVolume) -> None:
    append(disks.log(PARTITION), b"a")
    append(disks.log(OTHER), b"b")
    disks.close()
    sim_volume.remove_tree("/b")
    sim_volume.remove("/a/known-directories.json")
    disks.open()
    assert disks.directories.offline == {}
    assert disks.directories.expect(REPLICAS) == [(TOPIC_ID, 1)]
    assert disks.log(OTHER).log_end_offset == 0


def test_a_directory_that_was_taken_out_of_the_settings_is_told(disks: Disks) -> None:
    append(disks.log(PARTITION), b"a")
    append(disks.log(OTHER), b"b")
    disks.close()
    disks.paths = ["/a", "/c"]
    disks.open()
    assert disks.directories.has_lost
    assert disks.directories.expect(REPLICAS) == [(TOPIC_ID, 1)]
    disks.close()
    disks.open()
    assert not disks.directories.has_lost


def test_only_if_no_directory_can_be_used_there_is_no_start(disks: Disks, sim_volume: SimVolume) -> None:
    disks.close()
    sim_volume.is_read_only = True
    with pytest.raises(ReadOnlyDisk):
        disks.open()
    sim_volume.is_read_only = False
    disks.open()
    with pytest.raises(DirectoryLocked):
        disks.open()


def test_the_same_log_in_two_directories_stops_the_start(disks: Disks, sim_volume: SimVolume) -> None:
    append(disks.log(PARTITION), b"a")
    disks.close()
    sim_volume.make_directory("/b/orders-0")
    sim_volume.write_bytes("/b/orders-0/00000000000000000000.log", b"")
    with pytest.raises(DuplicateLog, match="/a/orders-0 and /b/orders-0"):
        disks.open()


def recreate_while_a_disk_is_away(disks: Disks, *, moved_before: bool) -> None:
    """The old topic's log is on one disk, and the log of the new topic with its name on the other."""
    append(disks.log(PARTITION), b"old")
    if moved_before:
        disks.move("/b")
    away = disks.home()
    disks.close()
    # The disk is not there.
    disks.volume.fail("list", errno.EIO, path_contains=away, times=1000)
    disks.open()
    assert list(disks.directories.offline) == [away]
    log = disks.directories.create(PARTITION, OTHER_TOPIC_ID, disks.config)
    append(log, b"new")
    disks.close()
    disks.volume.faults.clear()


@pytest.mark.parametrize("moved_before", [False, True])
def test_a_disk_that_was_away_while_its_topic_was_made_again_does_not_keep_the_broker_from_starting(
    disks: Disks, sim_volume: SimVolume, caplog: pytest.LogCaptureFixture, moved_before: bool
) -> None:
    recreate_while_a_disk_is_away(disks, moved_before=moved_before)
    disks.belongs_to = lambda topic, topic_id: (topic, topic_id) == ("orders", OTHER_TOPIC_ID)
    disks.open()
    log = disks.directories.get(PARTITION)
    assert log is not None
    assert (log.topic_id, read_values(log)) == (OTHER_TOPIC_ID, [(0, b"new")])
    away = "/b" if moved_before else "/a"
    (stray,) = [entry.name for entry in sim_volume.list_directory(away) if "-stray" in entry.name]
    assert b"old" in sim_volume.read_bytes(f"{away}/{stray}/00000000000000000000.log")
    assert f"{away}/orders-0 is a log of a topic that does not exist" in caplog.text
    assert "orders" not in sim_volume.read_bytes(f"{away}/recovery-point-offset-checkpoint").decode()
    disks.close()
    disks.open()
    assert sim_volume.exists(f"{away}/{stray}")


def test_no_log_is_set_aside_while_nothing_is_known_of_its_topic(disks: Disks, sim_volume: SimVolume) -> None:
    recreate_while_a_disk_is_away(disks, moved_before=False)
    with pytest.raises(DuplicateLog, match="/a/orders-0 and /b/orders-0"):
        disks.open()
    assert sim_volume.exists("/a/orders-0")
    assert sim_volume.exists("/b/orders-0")


def test_of_a_topic_that_was_made_again_under_a_third_id_no_log_is_kept(
    disks: Disks, sim_volume: SimVolume
) -> None:
    recreate_while_a_disk_is_away(disks, moved_before=False)
    disks.belongs_to = lambda topic, topic_id: False
    disks.open()
    assert disks.directories.get(PARTITION) is None
    for path in ("/a", "/b"):
        assert any(entry.name.endswith("-stray") for entry in sim_volume.list_directory(path))


def test_one_directory_keeps_no_list(sim_volume: SimVolume) -> None:
    disks = Disks(sim_volume, ["/a"])
    disks.close()
    assert not sim_volume.exists("/a/known-directories.json")
    disks.paths = ["/a", "/b"]
    disks.open()
    assert sim_volume.exists("/a/known-directories.json")
    assert sim_volume.exists("/b/known-directories.json")
    disks.dispose()


def test_a_directory_that_fails_while_it_is_read_is_left_out(disks: Disks, sim_volume: SimVolume) -> None:
    append(disks.log(PARTITION), b"a")
    append(disks.log(OTHER), b"b")
    disks.abandon()
    sim_volume.fail("read", errno.EIO, path_contains="/b/orders-1/00000000000000000000.log", times=9)
    disks.open()
    assert list(disks.directories.offline) == ["/b"]
    assert list(disks.directories.logs) == [PARTITION]
