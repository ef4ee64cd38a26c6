"""Commits whose names are known: the same records and state as by the general way, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from millrace.coordinator.decision import Timer
from millrace.coordinator.runtime import Shard
from millrace.core.ids import TopicId
from millrace.groups.commands import CommitOffsets, GroupSettings, OffsetToCommit
from millrace.groups.machine import GroupMachine
from millrace.groups.offsets.prepared_commits import Committer, Staged, Wanted, apply_commit, place_of
from tests.unit.groups.worlds import NOW_MS, World

TOPIC_ID = TopicId(bytes(range(16)))
PLACES = [place_of("g", "t", partition, TOPIC_ID) for partition in range(3)]
ANYBODY = Committer("g", -1, "", None, 0)


class SetTimers(list[Timer]):
    """Those that were set, in order."""

    def change(self, timers: Sequence[Timer]) -> None:
        self.extend(timers)


class FakeShard:
    """What a commit asks of its shard."""

    def __init__(self, machine: GroupMachine) -> None:
        self.machine = machine
        self.takes_records = True
        self.batch_bytes_max = 10_000
        self.timers = SetTimers()


@pytest.fixture
def world() -> World:
    return World(GroupSettings(initial_rebalance_delay_ms=0, offset_metadata_max=10))


@pytest.fixture
def shard(world: World) -> FakeShard:
    return FakeShard(world.machine)


def commit(shard: FakeShard, *wanted: Wanted, committer: Committer = ANYBODY) -> Staged | None:
    return apply_commit(cast("Shard", shard), committer, wanted, NOW_MS)


def offsets(machine: GroupMachine) -> Any:
    return machine.offsets.by_group.get("g", {})


def test_records_and_state_are_those_of_the_general_way(shard: FakeShard) -> None:
    staged = commit(shard, (PLACES[0], 17, 3, "größe".encode()), (PLACES[2], 4, -1, b""))
    general = World(shard.machine.settings)
    wanted = [OffsetToCommit("t", 0, 17, 3, "größe", TOPIC_ID), OffsetToCommit("t", 2, 4, -1, "", TOPIC_ID)]
    general.ask(CommitOffsets(group_id="g", offsets=wanted))
    assert staged is not None
    assert staged[0] == general.log
    assert offsets(shard.machine) == offsets(general.machine) != {}
    assert sorted(shard.machine.groups) == ["g"]


def test_the_size_that_is_told_is_never_less_than_what_is_written(shard: FakeShard) -> None:
    staged = commit(shard, *((place, 2**62, 2**30, b"0123456789") for place in PLACES))
    assert staged is not None
    records, size_bytes = staged
    assert sum(len(key) + len(value or b"") for key, value in records) <= size_bytes


@pytest.mark.parametrize("metadata", [b"\xff\xfe", b"01234567890"])
def test_metadata_that_is_no_text_or_too_long_is_left_to_the_general_way(
    shard: FakeShard, metadata: bytes
) -> None:
    assert commit(shard, (PLACES[0], 1, -1, b""), (PLACES[1], 2, -1, metadata)) is None
    assert offsets(shard.machine) == {}


def test_the_length_of_metadata_is_counted_in_characters(shard: FakeShard) -> None:
    assert commit(shard, (PLACES[0], 1, -1, ("ö" * 10).encode())) is not None


def test_a_commit_that_does_not_fit_into_a_batch_changes_nothing(shard: FakeShard) -> None:
    shard.batch_bytes_max = 100
    assert commit(shard, *((place, 1, -1, b"") for place in PLACES)) is None
    assert offsets(shard.machine) == {}
    assert not shard.machine.groups


def test_nothing_is_applied_while_too_few_replicas_could_store_it(shard: FakeShard) -> None:
    shard.takes_records = False
    assert commit(shard, (PLACES[0], 1, -1, b"")) is None
    assert offsets(shard.machine) == {}


def test_a_member_of_a_group_that_is_not_there_is_left_to_the_general_way(shard: FakeShard) -> None:
    stranger = Committer("g", 1, "m", None, 0)
    assert commit(shard, (PLACES[0], 1, -1, b""), committer=stranger) is None
    assert offsets(shard.machine) == {}


def test_a_commit_of_a_member_is_a_sign_of_life_and_one_of_another_generation_is_not(
    world: World, shard: FakeShard
) -> None:
    (joined,) = world.make_stable(world.join())
    committer = Committer("g", joined.generation, joined.member_id, None, 0)
    other = Committer("g", joined.generation + 1, joined.member_id, None, 0)
    assert commit(shard, (PLACES[0], 1, -1, b""), committer=other) is None
    assert (shard.timers, offsets(shard.machine)) == ([], {})
    assert commit(shard, (PLACES[0], 1, -1, b""), committer=committer) is not None
    assert len(shard.timers) == 1
