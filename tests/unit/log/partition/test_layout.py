"""The names of a data directory, and the segments that are found in a log's."""

from __future__ import annotations

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.partition.layout import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    MOVED_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    deleted_directory_name,
    find_segments,
    parse_directory_name,
    parse_unique_name,
    stray_directory_name,
    unique_directory_name,
)
from millrace.log.segments.quarantine import DamagedRange, save_damage
from millrace.sim.volume import SimVolume

LONG = TopicPartition("t" * 249, 12)
DIRECTORY = "/d/orders-0"


@pytest.fixture
def volume(sim_volume: SimVolume) -> SimVolume:
    sim_volume.make_directory(DIRECTORY)
    return sim_volume


@pytest.mark.parametrize(
    "name, found",
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("with-dash.and_more-17", TopicPartition("with-dash.and_more", 17)),
        ("__consumer_offsets-3", TopicPartition("__consumer_offsets", 3)),
    ],
)
def test_a_directory_with_the_name_of_a_partition_is_its_log(name: str, found: TopicPartition) -> None:
    assert parse_directory_name(name) == found


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-x",
        "-0",
        "orders-0\n",
        "orders-0.ab12-delete",
        "orders-0.ab12-stray",
        "orders-0.ab12-future",
        "orders-0.ab12-moved",
        "__cluster_metadata-0",
        "a b-0",
    ],
)
def test_other_directories_are_left_alone(name: str) -> None:
    assert parse_directory_name(name) is None


@pytest.mark.parametrize("suffix", [FUTURE_DIRECTORY_SUFFIX, MOVED_DIRECTORY_SUFFIX])
def test_the_name_of_a_log_on_its_way_tells_partition_and_unique_part(suffix: str) -> None:
    partition = TopicPartition("or.ders-1", 4)
    name = unique_directory_name(partition, "ab12", suffix)
    assert name == f"or.ders-1-4.ab12{suffix}"
    assert parse_unique_name(name, suffix) == (partition, "ab12")
    assert parse_directory_name(name) is None


@pytest.mark.parametrize("name", ["orders-0", "orders-0.ab12-delete", "orders-0.XY-future", "nothing-future"])
def test_a_name_without_unique_part_or_with_another_suffix_is_no_log_on_its_way(name: str) -> None:
    assert parse_unique_name(name, FUTURE_DIRECTORY_SUFFIX) is None


def test_a_topic_with_the_longest_name_cannot_move_but_can_be_deleted_and_set_aside() -> None:
    assert unique_directory_name(LONG, "0123456789abcdef", FUTURE_DIRECTORY_SUFFIX) is None
    for name, suffix in (
        (deleted_directory_name(LONG, "0123456789abcdef"), DELETE_DIRECTORY_SUFFIX),
        (stray_directory_name(LONG, "0123456789abcdef"), STRAY_DIRECTORY_SUFFIX),
    ):
        assert len(name) == 255
        assert name.endswith(f"-12.0123456789abcdef{suffix}")
        assert parse_directory_name(name) is None


def test_segments_are_found_in_the_order_of_their_offsets_and_other_files_are_not(volume: SimVolume) -> None:
    for name in (f"{40:020}.log", f"{7:020}.log", f"{7:020}.index", "partition.metadata", "notes.log"):
        volume.write_bytes(f"{DIRECTORY}/{name}", b"12345")
    found = find_segments(volume, DIRECTORY, first_offset=0)
    assert [(segment.base_offset, segment.size_bytes) for segment in found] == [(7, 5), (40, 5)]


def test_a_directory_without_segments_gets_an_empty_one_at_the_first_offset(volume: SimVolume) -> None:
    (segment,) = find_segments(volume, DIRECTORY, first_offset=123)
    assert (segment.base_offset, segment.size_bytes) == (123, 0)


def test_known_damage_is_brought_along_and_that_of_a_deleted_segment_is_removed(volume: SimVolume) -> None:
    volume.write_bytes(f"{DIRECTORY}/{10:020}.log", bytes(500))
    damage = (DamagedRange(100, 50, 12, 14),)
    save_damage(volume, f"{DIRECTORY}/{10:020}.quarantine", damage)
    save_damage(volume, f"{DIRECTORY}/{5:020}.quarantine", damage)
    (segment,) = find_segments(volume, DIRECTORY, first_offset=0)
    assert segment.damage == damage
    assert volume.exists(f"{DIRECTORY}/{10:020}.quarantine")
    assert not volume.exists(f"{DIRECTORY}/{5:020}.quarantine")
