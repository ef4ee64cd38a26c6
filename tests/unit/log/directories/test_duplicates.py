"""Which of several directories of a partition counts at the start."""

from __future__ import annotations

import pytest

from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.log.directories.duplicates import Surveyed, Verdict, ask_about, resolve_duplicates
from millrace.log.directories.log_copies import write_origins
from millrace.log.directories.survey import survey
from millrace.log.errors import DuplicateLog
from millrace.log.segments import checkpoints
from millrace.sim.volume import SimVolume
from tests.unit.log.support import OTHER_TOPIC_ID, PARTITION, TOPIC_ID, batch_of

PATHS = ("/a", "/b")


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    for path in PATHS:
        sim_volume.make_directory(path)
        checkpoints.write_properties(
            sim_volume, f"{path}/{checkpoints.META_PROPERTIES}", {"directory.id": f"id-of-{path[1:]}"}
        )
    return sim_volume


def put(volume: SimVolume, path: str, topic_id: TopicId = TOPIC_ID, *, records: bool = True) -> None:
    volume.make_directory(path)
    checkpoints.write_partition_metadata(volume, path, topic_id, durable=False)
    if records:
        volume.write_bytes(f"{path}/{0:020}.log", bytes(batch_of(b"v")))


def surveys(volume: SimVolume) -> list[Surveyed]:
    return [Surveyed(path, "cd34", survey(volume, path)) for path in PATHS]


def homes(found: list[Surveyed]) -> list[str]:
    return [each.path for each in found if PARTITION in each.found.partitions]


def test_only_logs_that_are_there_twice_are_asked_about(volume: SimVolume) -> None:
    put(volume, "/a/orders-0")
    put(volume, "/b/orders-0", OTHER_TOPIC_ID)
    put(volume, "/a/orders-1")
    asked = ask_about(surveys(volume), lambda topic, topic_id: topic_id == TOPIC_ID)
    assert asked == (Verdict("orders", TOPIC_ID, True), Verdict("orders", OTHER_TOPIC_ID, False))


def test_a_copy_under_way_makes_its_log_one_to_ask_about(volume: SimVolume) -> None:
    put(volume, "/a/orders-0")
    put(volume, "/b/orders-0.ab12-future")
    assert ask_about(surveys(volume), lambda topic, topic_id: None) == (Verdict("orders", TOPIC_ID, None),)


def test_a_copy_whose_original_was_set_aside_takes_its_place(volume: SimVolume) -> None:
    put(volume, "/a/orders-0.ab12-moved")
    put(volume, "/b/orders-0.ab12-future")
    found = surveys(volume)
    resolve_duplicates(volume, found, ())
    assert homes(found) == ["/b"]
    assert found[1].found.futures == []
    assert found[0].found.deleted == ["/a/orders-0.ab12-moved"]
    volume.crash()
    assert volume.exists("/b/orders-0"), "its new name is on the disk"


def test_a_copy_of_another_move_stays_what_it_is_and_the_original_is_left_alone(volume: SimVolume) -> None:
    put(volume, "/a/orders-0.ab12-moved")
    put(volume, "/b/orders-0.ef56-future")
    found = surveys(volume)
    resolve_duplicates(volume, found, ())
    assert homes(found) == []
    assert len(found[1].found.futures) == 1
    assert found[0].found.deleted == []


@pytest.mark.parametrize("winner, loser", [("/a", "/b"), ("/b", "/a")])
def test_the_log_that_was_moved_out_of_the_others_directory_counts(
    volume: SimVolume, winner: str, loser: str
) -> None:
    for path in PATHS:
        put(volume, f"{path}/orders-0")
    write_origins(volume, f"{winner}/orders-0", [f"id-of-{loser[1:]}"])
    found = surveys(volume)
    resolve_duplicates(volume, found, ())
    assert homes(found) == [winner]
    assert not volume.exists(f"{loser}/orders-0")
    assert volume.exists(f"{loser}/orders-0.cd34-delete/{0:020}.log")


@pytest.mark.parametrize("empty, full", [("/a", "/b"), ("/b", "/a")])
def test_what_an_attempt_to_make_a_log_left_does_not_count(volume: SimVolume, empty: str, full: str) -> None:
    put(volume, f"{empty}/orders-0", records=False)
    put(volume, f"{full}/orders-0")
    found = surveys(volume)
    resolve_duplicates(volume, found, ())
    assert homes(found) == [full]


def test_a_directory_that_lost_its_files_is_not_taken_for_one_that_never_had_any(volume: SimVolume) -> None:
    put(volume, "/a/orders-0", records=False)
    put(volume, "/b/orders-0")
    checkpoints.write_offsets(volume, f"/a/{checkpoints.RECOVERY_POINTS}", {PARTITION: 7})
    with pytest.raises(DuplicateLog):
        resolve_duplicates(volume, surveys(volume), ())


def test_nobody_decides_between_two_logs_with_records_of_the_same_topic(volume: SimVolume) -> None:
    for path in PATHS:
        put(volume, f"{path}/orders-0")
    with pytest.raises(DuplicateLog):
        resolve_duplicates(volume, surveys(volume), [Verdict("orders", TOPIC_ID, True)])


@pytest.mark.parametrize("other", [False, None])
def test_of_the_logs_of_two_topics_that_of_the_topic_that_is_there_counts(
    volume: SimVolume, other: bool | None
) -> None:
    put(volume, "/a/orders-0", OTHER_TOPIC_ID)
    put(volume, "/b/orders-0")
    found = surveys(volume)
    verdicts = [Verdict("orders", OTHER_TOPIC_ID, other), Verdict("orders", TOPIC_ID, True)]
    resolve_duplicates(volume, found, verdicts)
    assert homes(found) == ["/b"]
    assert volume.exists(f"/a/orders-0.cd34-stray/{0:020}.log"), "perhaps all that is left of something"
    assert found[0].found.has_strays


def test_logs_of_two_topics_that_are_both_gone_are_both_set_aside(volume: SimVolume) -> None:
    put(volume, "/a/orders-0", OTHER_TOPIC_ID)
    put(volume, "/b/orders-0")
    found = surveys(volume)
    verdicts = [Verdict("orders", OTHER_TOPIC_ID, False), Verdict("orders", TOPIC_ID, False)]
    resolve_duplicates(volume, found, verdicts)
    assert homes(found) == []
    assert all(volume.exists(f"{path}/orders-0.cd34-stray") for path in PATHS)


def test_where_the_metadata_says_nothing_no_log_is_set_aside(volume: SimVolume) -> None:
    put(volume, "/a/orders-0", OTHER_TOPIC_ID)
    put(volume, "/b/orders-0")
    with pytest.raises(DuplicateLog):
        resolve_duplicates(volume, surveys(volume), ())
    assert volume.exists("/a/orders-0")
    assert volume.exists("/b/orders-0")


def test_a_log_without_an_id_is_no_other_topics(volume: SimVolume) -> None:
    volume.make_directory("/a/orders-0")
    put(volume, "/b/orders-0")
    found = surveys(volume)
    assert found[0].found.partitions[PARTITION].topic_id == NO_TOPIC_ID
    resolve_duplicates(volume, found, [Verdict("orders", TOPIC_ID, False)])
    assert homes(found) == ["/b"]
