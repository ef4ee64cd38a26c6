"""The rules of classic groups, by example."""

from __future__ import annotations

import pytest

from millrace.groups.classic.group import State
from millrace.groups.commands import (
    DONE,
    CommitOffsets,
    GroupSettings,
    Heartbeat,
    Leave,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Sync,
    Synced,
)
from millrace.groups.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from tests.unit.groups.worlds import World, error_of, members_of, stored_state, subscription

RANGE = Protocol("range", subscription("t"))
STICKY = Protocol("sticky", subscription("t"))


def heartbeat(world: World, member_id: str, generation: int, instance_id: str | None = None) -> object:
    return world.ask(Heartbeat("g", generation, member_id, instance_id))


# Joining.


def test_a_new_member_is_told_its_id_first() -> None:
    # A client that retries a lost JoinGroup would otherwise leave a ghost behind each time.
    world = World()
    outcome = world.ask(world.join_command())
    assert isinstance(outcome, MemberIdRequired)
    assert not world.group().members
    token = world.submit(world.join_command(outcome.member_id))
    world.advance(0)
    assert world.joined(token).member_id == outcome.member_id


def test_an_old_client_joins_at_once() -> None:
    world = World()
    token = world.submit(world.join_command(requires_known_member_id=False))
    world.advance(0)
    assert world.joined(token).generation == 1


def test_a_new_group_waits_for_more_members() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = world.join()
    world.advance(2_000)
    second = world.join()
    world.advance(2_000)
    assert world.is_waiting(first), "who came during the delay prolongs it"
    world.advance(2_000)
    assert world.joined(first).generation == world.joined(second).generation == 1


def test_the_delay_never_exceeds_the_rebalance_timeout() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    tokens = [world.join(rebalance_timeout_ms=5_000)]
    for _ in range(5):
        world.advance(1_000)
        tokens.append(world.join(rebalance_timeout_ms=5_000))
    world.advance(1)
    assert not world.is_waiting(tokens[0])


def test_the_leader_sees_all_members_and_the_others_none() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(), world.join())
    assert members_of(leader) == [leader.member_id, follower.member_id]
    assert leader.leader == follower.leader == leader.member_id
    assert not follower.members


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    world = World()
    tokens = [
        world.join(protocols=(Protocol("only-here", b""), STICKY, RANGE)),
        world.join(protocols=(RANGE, STICKY)),
        world.join(protocols=(RANGE, STICKY)),
    ]
    world.advance(0)
    assert {world.joined(token).protocol for token in tokens} == {"range"}


def test_a_member_without_a_common_protocol_is_refused() -> None:
    world = World()
    world.make_stable(world.join())
    assert error_of(world.ask(world.join_command(protocols=(STICKY,)))) is InconsistentProtocol
    assert error_of(world.ask(world.join_command(protocol_type="connect"))) is InconsistentProtocol


def test_an_unknown_member_id_is_refused() -> None:
    world = World()
    assert error_of(world.ask(world.join_command("stranger"))) is UnknownMember
    world.make_stable(world.join())
    assert error_of(world.ask(world.join_command("stranger"))) is UnknownMember


def test_a_full_group_takes_nobody() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, size_max=2))
    members = world.make_stable(world.join(), world.join())
    assert error_of(world.ask(world.join_command())) is GroupFull
    again = world.join(members[1].member_id)
    assert world.joined(again).generation == 1


def test_a_follower_that_joins_again_unchanged_gets_the_present_generation() -> None:
    world = World()
    _, follower = world.make_stable(world.join(), world.join())
    again = world.joined(world.join(follower.member_id))
    assert again.generation == follower.generation
    assert world.group().state is State.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(), world.join())
    token = world.join(leader.member_id)
    assert world.group().state is State.PREPARING
    assert error_of(heartbeat(world, follower.member_id, follower.generation)) is RebalanceInProgress
    other = world.join(follower.member_id)
    assert world.joined(token).generation == world.joined(other).generation == leader.generation + 1


def test_a_lost_answer_is_repeated_while_the_generation_is_being_completed() -> None:
    world = World()
    leader_token, follower_token = world.join(), world.join()
    world.advance(0)
    leader, follower = world.joined(leader_token), world.joined(follower_token)
    assert world.joined(world.join(leader.member_id)) == leader
    assert world.joined(world.join(follower.member_id)) == follower


def test_a_repeated_join_releases_the_request_that_waited_before() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(), world.join())
    first = world.join(leader.member_id)
    second = world.join(leader.member_id)
    assert error_of(world.outcomes[first]) is RebalanceInProgress
    world.join(follower.member_id)
    assert world.joined(second).generation == 2


def test_members_that_do_not_join_again_in_time_are_dropped() -> None:
    world = World()
    leader, gone = world.make_stable(world.join(), world.join())
    for _ in range(4):
        heartbeat(world, leader.member_id, leader.generation)
        heartbeat(world, gone.member_id, gone.generation)
    token = world.join(leader.member_id)
    for _ in range(6):
        world.advance(5_000)
        # It shows signs of life, and still does not join.
        heartbeat(world, gone.member_id, gone.generation)
    world.advance(1)
    assert members_of(world.joined(token)) == [leader.member_id]
    assert error_of(heartbeat(world, gone.member_id, gone.generation)) is UnknownMember


def test_an_id_that_was_never_used_does_not_hold_up_a_rebalance_for_long() -> None:
    world = World()
    (leader,) = world.make_stable(world.join())
    world.ask(world.join_command())
    token = world.join(leader.member_id)
    assert world.is_waiting(token)
    world.advance(10_000)
    assert world.joined(token).generation == 2


# Synchronising.


def test_followers_wait_for_the_leader() -> None:
    world = World()
    leader_token, follower_token = world.join(), world.join()
    world.advance(0)
    leader, follower = world.joined(leader_token), world.joined(follower_token)
    waiting = world.sync(follower)
    assert world.is_waiting(waiting)
    done = world.sync(leader, {leader.member_id: b"a", follower.member_id: b"b"})
    assert world.outcomes[done] == Synced("consumer", "range", b"a")
    assert world.outcomes[waiting] == Synced("consumer", "range", b"b")
    assert world.outcomes[world.sync(follower)] == Synced("consumer", "range", b"b")


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    world = World()
    leader_token, follower_token = world.join(), world.join()
    world.advance(0)
    world.sync(world.joined(leader_token), {})
    assert world.outcomes[world.sync(world.joined(follower_token))].assignment == b""


def test_a_rebalance_sends_those_who_wait_for_an_assignment_back_to_join() -> None:
    world = World()
    tokens = world.join(), world.join()
    world.advance(0)
    waiting = world.sync(world.joined(tokens[1]))
    world.join()
    assert error_of(world.outcomes[waiting]) is RebalanceInProgress


@pytest.mark.parametrize(
    "change, error",
    [
        ({"generation": 9}, IllegalGeneration),
        ({"member_id": "stranger"}, UnknownMember),
        ({"protocol_type": "connect"}, InconsistentProtocol),
        ({"protocol": "sticky"}, InconsistentProtocol),
    ],
)
def test_a_sync_must_fit_to_the_generation(change: dict[str, object], error: type) -> None:
    world = World()
    token = world.join()
    world.advance(0)
    values = {"group_id": "g", "generation": 1, "member_id": world.joined(token).member_id, **change}
    assert error_of(world.ask(Sync(**values))) is error  # type: ignore[arg-type]


def test_members_that_never_ask_for_their_assignment_are_dropped() -> None:
    world = World()
    tokens = world.join(), world.join()
    world.advance(0)
    leader, silent = (world.joined(token) for token in tokens)
    world.sync(leader)
    for _ in range(6):
        world.advance(5_000)
        for member in (leader, silent):
            heartbeat(world, member.member_id, member.generation)
    assert silent.member_id not in world.group().members
    assert world.group().state is State.PREPARING


# Staying and leaving.


def test_a_member_lives_as_long_as_it_shows_itself() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    for _ in range(5):
        world.advance(9_000)
        assert heartbeat(world, member.member_id, 1) is DONE
    world.advance(10_000)
    assert error_of(heartbeat(world, member.member_id, 1)) is UnknownMember
    assert world.group().state is State.EMPTY


def test_a_commit_is_a_sign_of_life_too() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    for _ in range(5):
        world.advance(9_000)
        world.ask(
            CommitOffsets(
                group_id="g",
                member_id=member.member_id,
                generation=1,
                offsets=[OffsetToCommit("t", 0, 1, -1, "")],
            )
        )
    assert world.group().state is State.STABLE


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    assert error_of(heartbeat(world, member.member_id, 0)) is IllegalGeneration
    assert error_of(heartbeat(world, "stranger", 1)) is UnknownMember


def test_the_last_member_leaves_an_empty_group_behind_that_is_stored() -> None:
    world = World()
    (member,) = world.make_stable(world.join())
    left = world.ask(Leave("g", [LeavingMember(member.member_id)]))
    assert [error for _, error in left.members] == [None]
    group = world.group()
    assert (group.state, group.generation, group.leader, group.protocol) == (State.EMPTY, 2, None, None)
    assert stored_state(world.replayed()) == stored_state(world.machine)
    assert world.replayed().groups["g"].state_name == "Empty"


def test_several_members_leave_at_once_with_an_answer_each() -> None:
    world = World()
    first, second = world.make_stable(world.join(), world.join(instance_id="i"))
    leaving = [
        LeavingMember(first.member_id),
        LeavingMember("stranger"),
        LeavingMember("", "i"),
        LeavingMember("", "?"),
    ]
    left = world.ask(Leave("g", leaving))
    assert [error_of(error) for _, error in left.members] == [None, UnknownMember, None, UnknownMember]
    assert world.group().state is State.EMPTY
    assert error_of(heartbeat(world, second.member_id, 1)) is UnknownMember


def test_a_leader_that_leaves_is_replaced_by_one_who_joins() -> None:
    world = World()
    leader, other = world.make_stable(world.join(), world.join())
    world.ask(Leave("g", [LeavingMember(leader.member_id)]))
    token = world.join(other.member_id)
    assert world.joined(token).leader == other.member_id


# Static members.


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(instance_id="a"), world.join(instance_id="b"))
    back = world.joined(world.join(instance_id="b"))
    assert back.member_id != follower.member_id
    assert (back.generation, back.leader, back.skip_assignment) == (1, leader.member_id, False)
    assert world.group().state is State.STABLE
    synced = world.outcomes[world.sync(back)]
    assert synced.assignment == follower.member_id.encode(), "its old assignment"
    assert stored_state(world.replayed()) == stored_state(world.machine)


def test_a_static_leader_comes_back_and_skips_the_assignment() -> None:
    world = World()
    leader, _ = world.make_stable(world.join(instance_id="a"), world.join(instance_id="b"))
    back = world.joined(world.join(instance_id="a"))
    assert back.skip_assignment
    assert back.leader == back.member_id != leader.member_id
    assert len(back.members) == 2


def test_an_old_client_that_cannot_skip_is_not_told_that_it_leads() -> None:
    world = World()
    leader, _ = world.make_stable(world.join(instance_id="a"), world.join(instance_id="b"))
    back = world.joined(world.join(instance_id="a", supports_skipped_assignment=False))
    assert not back.skip_assignment
    assert back.leader == leader.member_id != back.member_id


def test_the_old_id_of_a_static_member_is_fenced() -> None:
    world = World()
    (old,) = world.make_stable(world.join(instance_id="a"))
    world.join(instance_id="a")
    assert error_of(heartbeat(world, old.member_id, 1, "a")) is FencedInstance
    assert error_of(world.ask(world.join_command(old.member_id, instance_id="a"))) is FencedInstance


def test_a_waiting_request_of_a_replaced_static_member_is_fenced() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(instance_id="a"), world.join())
    waiting = world.join(leader.member_id, instance_id="a")
    again = world.join(instance_id="a")
    assert error_of(world.outcomes[waiting]) is FencedInstance
    world.join(follower.member_id)
    assert world.joined(again).generation == 2


def test_a_static_member_that_stays_away_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    leader, away = world.make_stable(world.join(), world.join(instance_id="b", session_timeout_ms=60_000))
    token = world.join(leader.member_id)
    world.advance(30_000)
    assert members_of(world.joined(token)) == [leader.member_id, away.member_id]


def test_a_static_member_with_another_protocol_starts_a_rebalance() -> None:
    world = World()
    world.make_stable(world.join(instance_id="a", protocols=(RANGE, STICKY)))
    token = world.join(instance_id="a", protocols=(STICKY,))
    assert world.joined(token).protocol == "sticky"
    assert world.joined(token).generation == 2


# Restarting.


def test_a_stable_group_survives_a_restart_and_its_members_stay() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(), world.join(instance_id="i"))
    world.restart()
    group = world.group()
    assert (group.state, group.generation, group.leader) == (State.STABLE, 1, leader.member_id)
    assert heartbeat(world, follower.member_id, 1, "i") is DONE
    assert world.outcomes[world.sync(follower)].assignment == follower.member_id.encode()


def test_members_that_died_with_the_coordinator_are_found_out() -> None:
    world = World()
    world.make_stable(world.join(), world.join())
    world.restart()
    world.advance(10_000)
    world.advance(30_000)
    assert world.group().state is State.EMPTY


def test_a_crash_amid_a_rebalance_leads_back_to_the_generation_before() -> None:
    world = World()
    leader, follower = world.make_stable(world.join(), world.join())
    world.join(leader.member_id)
    world.restart()
    assert world.group().state is State.STABLE
    assert heartbeat(world, follower.member_id, 1) is DONE
