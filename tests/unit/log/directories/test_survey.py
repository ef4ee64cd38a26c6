"""What lies in a data directory before anything is opened."""

from __future__ import annotations

import pytest

from millrace.core.ids import NO_TOPIC_ID, TopicPartition
from millrace.log.directories.survey import Passage, Survey, survey
from millrace.log.segments import checkpoints
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk, append


@pytest.fixture
def stored(disk: Disk) -> Disk:
    """A log of several segments, closed in order."""
    log = disk.log()
    for _ in range(40):
        append(log, bytes(100))
    assert len(log.segments) > 2
    disk.close()
    return disk


def empty_survey(**values: object) -> Survey:
    known: dict[str, object] = {
        "is_clean": True,
        "recovery_points": {},
        "log_starts": {},
        "high_watermarks": {},
        "cleaner_offsets": {},
    }
    return Survey(**{**known, **values})  # type: ignore[arg-type]


def test_after_an_orderly_end_names_and_sizes_are_believed(stored: Disk) -> None:
    found = survey(stored.volume, stored.path)
    item = found.partitions[PARTITION]
    assert (item.topic_id, item.log_end_offset, item.size_bytes) == (TOPIC_ID, 40, 0)
    assert item.segments is not None
    assert len(item.segments) > 2
    assert found.high_watermarks == {PARTITION: 40}


def test_the_mark_of_an_orderly_end_holds_for_one_start(stored: Disk) -> None:
    assert survey(stored.volume, stored.path).is_clean
    again = survey(stored.volume, stored.path)
    assert not again.is_clean
    assert again.partitions[PARTITION].segments is None


def test_after_a_crash_all_bytes_are_to_be_checked(stored: Disk) -> None:
    checkpoints.remove_clean_shutdown(stored.volume, stored.path)
    found = survey(stored.volume, stored.path)
    item = found.partitions[PARTITION]
    assert item.segments is None
    assert item.size_bytes > 40 * 100
    progress = found.progress()
    assert (progress.logs_total, progress.bytes_total, progress.is_clean) == (1, item.size_bytes, False)


@pytest.mark.parametrize("wrong", [39, 41])
def test_a_recovery_point_that_the_last_batch_contradicts_is_not_believed(stored: Disk, wrong: int) -> None:
    path = f"{stored.path}/{checkpoints.RECOVERY_POINTS}"
    checkpoints.write_offsets(stored.volume, path, {PARTITION: wrong})
    assert survey(stored.volume, stored.path).partitions[PARTITION].segments is None


def test_directories_are_told_apart_by_their_names(stored: Disk) -> None:
    for name in (
        "orders-1.ab12-delete",
        "orders-2.ab12-future",
        "orders-3.ab12-moved",
        "orders-4.ab12-stray",
        "lost+found",
        "orders-5",
    ):
        stored.volume.make_directory(f"{stored.path}/{name}")
    stored.volume.write_bytes(f"{stored.path}/orders-6", b"a file, not a log")
    found = survey(stored.volume, stored.path)
    assert found.deleted == [f"{stored.path}/orders-1.ab12-delete"]
    assert found.futures == [
        Passage(TopicPartition("orders", 2), "ab12", f"{stored.path}/orders-2.ab12-future")
    ]
    assert found.moved == [Passage(TopicPartition("orders", 3), "ab12", f"{stored.path}/orders-3.ab12-moved")]
    assert set(found.partitions) == {PARTITION, TopicPartition("orders", 5)}
    assert found.partitions[TopicPartition("orders", 5)].topic_id == NO_TOPIC_ID


def test_the_ends_of_a_log_are_those_of_the_checkpoints() -> None:
    found = empty_survey(log_starts={PARTITION: 5}, high_watermarks={PARTITION: 30})
    assert found.ends_of(PARTITION, 40) == (5, 30)
    assert found.ends_of(TopicPartition("orders", 9), 40) == (0, 0)


def test_a_start_behind_everything_that_is_known_of_a_log_is_not_believed() -> None:
    found = empty_survey(log_starts={PARTITION: 50}, high_watermarks={PARTITION: 30})
    assert found.ends_of(PARTITION, 40) == (0, 30)
    assert found.ends_of(PARTITION, 50)[0] == 50
    flushed = empty_survey(log_starts={PARTITION: 50}, recovery_points={PARTITION: 50}, is_clean=False)
    assert flushed.ends_of(PARTITION, 40)[0] == 50, "the log lost its end in a crash"


@pytest.mark.parametrize("is_clean, high_watermark", [(True, 0), (False, 60)])
def test_a_high_watermark_behind_the_end_is_true_only_after_a_crash(
    is_clean: bool, high_watermark: int
) -> None:
    found = empty_survey(high_watermarks={PARTITION: 60}, is_clean=is_clean)
    assert found.ends_of(PARTITION, 40) == (0, high_watermark)
