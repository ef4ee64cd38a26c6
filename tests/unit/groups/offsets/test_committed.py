"""Committed offsets: who may commit, what is kept, and what is forgotten when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.groups.commands import (
    DONE,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    FetchOffsets,
    GroupSettings,
    Leave,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    TopicsDeleted,
)
from millrace.groups.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    SubscribedToTopic,
    UnknownMember,
)
from tests.unit.groups.worlds import World, error_of, stored_state, subscription

MINUTE_MS = 60_000
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=10 * MINUTE_MS)


def commit(world: World, *offsets: OffsetToCommit, **values: Any) -> Any:
    wanted = offsets or (OffsetToCommit("t", 0, 5, 1, "note"),)
    return world.ask(CommitOffsets(group_id="g", offsets=wanted, **values))


def fetched(world: World, *places: tuple[str, int]) -> Sequence[int | None]:
    outcome = world.ask(FetchOffsets("g", list(places)))
    return [None if committed is None else committed.offset for _, _, committed in outcome.offsets]


def topics(world: World) -> list[str]:
    return list(world.machine.offsets.by_group.get("g", {}))


def test_a_consumer_without_a_group_commits_and_fetches() -> None:
    world = World()
    assert commit(world).errors == [None]
    outcome = world.ask(FetchOffsets("g", [("t", 0), ("t", 1)]))
    ((_, _, found), (_, _, missing)) = outcome.offsets
    assert (found.offset, found.leader_epoch, found.metadata) == (5, 1, "note")
    assert missing is None
    assert world.group().protocol_type == ""
    assert stored_state(world.replayed()) == stored_state(world.machine)


def test_all_offsets_of_a_group_can_be_asked_for() -> None:
    world = World()
    commit(world, OffsetToCommit("t", 0, 5, -1, ""), OffsetToCommit("u", 3, 7, -1, ""))
    outcome = world.ask(FetchOffsets("g", None))
    assert [(topic, partition, each.offset) for topic, partition, each in outcome.offsets] == [
        ("t", 0, 5),
        ("u", 3, 7),
    ]


def test_only_members_of_the_generation_commit_to_an_active_group() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    assert commit(world, member_id=member.member_id, generation=1).errors == [None]
    assert error_of(commit(world, member_id=member.member_id, generation=0)) is IllegalGeneration
    assert error_of(commit(world, member_id="stranger", generation=1)) is UnknownMember
    assert error_of(commit(world)) is UnknownMember


def test_a_commit_waits_for_the_end_of_a_rebalance() -> None:
    world = World()
    token = world.join()
    world.advance(0)
    joined = world.joined(token)
    assert error_of(commit(world, member_id=joined.member_id, generation=1)) is RebalanceInProgress


def test_a_member_may_still_commit_while_the_others_are_joining() -> None:
    # A consumer commits when its partitions are revoked, which is before it joins again.
    world = World()
    leader, follower = world.make_stable(world.join(), world.join())
    world.join(leader.member_id)
    assert commit(world, member_id=follower.member_id, generation=1).errors == [None]


def test_a_missing_group_is_told_apart_where_the_client_can_understand() -> None:
    world = World()
    assert error_of(commit(world, generation=3)) is GroupNotFound
    assert error_of(commit(world, generation=3, knows_epochs=False)) is IllegalGeneration


def test_too_much_metadata_fails_for_its_partition_alone() -> None:
    world = World(GroupSettings(offset_metadata_max=4))
    outcome = commit(world, OffsetToCommit("t", 0, 1, -1, "12345"), OffsetToCommit("t", 1, 1, -1, "1234"))
    assert [error_of(error) for error in outcome.errors] == [OffsetMetadataTooLarge, None]
    assert fetched(world, ("t", 0), ("t", 1)) == [None, 1]


def test_offsets_of_an_empty_group_expire_with_the_group() -> None:
    world = World(SETTINGS)
    (member,) = world.make_stable(world.join())
    commit(world, member_id=member.member_id, generation=1)
    world.advance(5_000)
    world.ask(Leave("g", [LeavingMember(member.member_id)]))
    world.advance(10 * MINUTE_MS - 1)
    world.ask(ExpireOffsets())
    assert fetched(world, ("t", 0)) == [5], "the retention counts from when the group became empty"
    world.advance(1)
    world.ask(ExpireOffsets())
    assert "g" not in world.machine.groups
    assert not world.machine.offsets.by_group
    assert stored_state(world.replayed()) == stored_state(world.machine)


def test_an_active_group_keeps_what_it_is_subscribed_to() -> None:
    world = World(SETTINGS)
    (member,) = world.make_stable(world.join(session_timeout_ms=1_000_000_000))
    commit(
        world,
        OffsetToCommit("t", 0, 5, -1, ""),
        OffsetToCommit("former", 0, 5, -1, ""),
        member_id=member.member_id,
        generation=1,
    )
    world.advance(10 * MINUTE_MS)
    world.ask(ExpireOffsets())
    assert topics(world) == ["t"]


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    world = World(SETTINGS)
    commit(world, OffsetToCommit("t", 0, 1, -1, ""))
    world.advance(6 * MINUTE_MS)
    commit(world, OffsetToCommit("u", 0, 1, -1, ""))
    world.advance(4 * MINUTE_MS)
    world.ask(ExpireOffsets())
    assert topics(world) == ["u"]


def test_an_old_client_may_choose_the_retention_itself() -> None:
    world = World(SETTINGS)
    commit(world, retention_ms=60 * MINUTE_MS)
    world.advance(59 * MINUTE_MS)
    world.ask(ExpireOffsets())
    assert topics(world) == ["t"]
    world.advance(MINUTE_MS)
    world.ask(ExpireOffsets())
    assert topics(world) == []


def test_expiry_looks_again_and_again() -> None:
    world = World(SETTINGS)
    commit(world)
    world.advance(30 * MINUTE_MS)
    assert "g" not in world.machine.groups


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    world = World()
    commit(world, OffsetToCommit("t", 0, 1, -1, ""), OffsetToCommit("u", 0, 1, -1, ""))
    world.ask(TopicsDeleted(["t", "other"]))
    assert topics(world) == ["u"]
    assert stored_state(world.replayed()) == stored_state(world.machine)


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    commit(
        world,
        OffsetToCommit("t", 0, 5, -1, ""),
        OffsetToCommit("former", 0, 5, -1, ""),
        member_id=member.member_id,
        generation=1,
    )
    outcome = world.ask(DeleteOffsets("g", [("t", 0), ("former", 0), ("former", 9)]))
    assert [error_of(error) for error in outcome.errors] == [SubscribedToTopic, None, None]
    assert topics(world) == ["t"]


def test_offsets_of_an_active_group_of_another_kind_cannot_be_deleted() -> None:
    world = World()
    world.make_stable(world.join(protocol_type="connect", protocols=(Protocol("default", b""),)))
    assert error_of(world.ask(DeleteOffsets("g", [("t", 0)]))) is GroupNotEmpty
    assert error_of(world.ask(DeleteOffsets("nobody", [("t", 0)]))) is GroupNotFound


def test_a_group_is_deleted_when_it_is_empty_and_not_before() -> None:
    world = World()
    (member,) = world.make_stable(world.join(protocols=(Protocol("range", subscription("t")),)))
    commit(world, member_id=member.member_id, generation=1)
    assert error_of(world.ask(DeleteGroup("g"))) is GroupNotEmpty
    world.ask(Leave("g", [LeavingMember(member.member_id)]))
    assert world.ask(DeleteGroup("g")) is DONE
    assert error_of(world.ask(DeleteGroup("g"))) is GroupNotFound
    assert stored_state(world.replayed()) == {"groups": {}, "offsets": {}}
