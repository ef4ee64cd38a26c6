"""`millrace group`: what is shown, what is refused in words, and that a plan alone changes nothing."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError

from millrace.cli import clients
from millrace.cli.group import health, offset_deletion, offsets, other_kinds, share_groups, state
from millrace.cli.group.commands import group
from millrace.cli.group.offsets import PlannedOffset
from millrace.cli.group.state import GroupListing, GroupState, MemberState, PartitionState
from tests.unit.cli.fakes import done, failed

NOW_MS = 1_000_000


def run(*words: str) -> Result:
    return CliRunner().invoke(group, words)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = 0
        self.is_share = False
        self.executed: list[object] = []
        self.outcomes: dict[str, Future[Any]] = {}
        self.plan = [
            PlannedOffset(topic="t", partition=0, old=10, new=4, note=""),
            PlannedOffset(topic="t", partition=1, old=None, new=0, note="the log begins here"),
        ]
        self.state = GroupState(
            group="g",
            state="Stable",
            type="consumer",
            assignor="",
            coordinator_id=1,
            coordinator="h:1 (id 1)",
            coordinator_host="h",
        )
        listed = [
            GroupListing(group="a", state="Stable", type="classic"),
            GroupListing(group="b", state="Empty", type="consumer"),
        ]
        admin = SimpleNamespace(
            delete_consumer_groups=lambda names, request_timeout: {
                name: self.outcomes.get(name, done()) for name in names
            }
        )
        monkeypatch.setattr(clients, "admin_client", lambda _address: admin)
        monkeypatch.setattr(state, "list_groups", lambda *_: listed)
        monkeypatch.setattr(other_kinds, "list_others", lambda _: [])
        monkeypatch.setattr(state, "describe_group", lambda *_: self.state)
        monkeypatch.setattr(state, "users_of", lambda *_: state.Users(self.members, self.is_share))
        monkeypatch.setattr(health, "discovered_url", lambda *_: None)
        monkeypatch.setattr(offsets, "partitions_in_scope", lambda *_, is_share=False: [("t", 0), ("t", 1)])
        monkeypatch.setattr(offsets, "plan", lambda *_: self.plan)
        monkeypatch.setattr(offsets, "present_offsets", lambda *_, is_share: {})
        monkeypatch.setattr(
            offsets, "execute", lambda *call, is_share: self.executed.append((call[-1], is_share))
        )
        monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.usefixtures("world")
def test_groups_are_listed_by_state_and_type() -> None:
    lines = [line.split() for line in run("list").output.splitlines()]
    assert lines == [["GROUP", "STATE", "TYPE"], ["a", "Stable", "classic"], ["b", "Empty", "consumer"]]
    assert [orjson.loads(line) for line in run("list", "--state", "empty", "--json").output.splitlines()] == [
        {"group": "b", "state": "Empty", "type": "consumer"}
    ]
    assert "b " not in run("list", "--type", "classic").output
    assert run("list", "--state", "humbug").exit_code == 2


def test_a_group_is_shown_with_lag_owners_and_ages(world: World) -> None:
    world.state = GroupState(
        group="g",
        state="Stable",
        type="consumer",
        assignor="uniform",
        coordinator_id=1,
        coordinator="h:1 (id 1)",
        coordinator_host="h",
        members=(
            MemberState(
                member="m",
                client="c",
                host="/h",
                instance=None,
                partitions=(("t", 0),),
                heartbeat_ms=NOW_MS - 1_500,
                # The clocks of two machines differ: never before now.
                commit_ms=NOW_MS + 9_000,
            ),
        ),
        partitions=(
            PartitionState(topic="t", partition=0, committed=3, end=10, lag_ms=2_300),
            PartitionState(topic="t", partition=1, committed=None, end=None),
        ),
    )
    output = run("describe", "g").output
    assert "Lag:          7 messages, 2.3 s\n" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["t", "0", "3", "10", "7", "2.3", "c"] in rows
    assert ["t", "1", "-", "-", "-", "-"] in rows
    assert rows[-1] == ["m", "c", "/h", "-", "1", "1.5", "s", "ago", "0.0", "s", "ago"]


def test_an_empty_group_says_so(world: World) -> None:
    output = run("describe", "g", "g").output
    assert "Assignor:     -\n" in output
    assert "Lag:          0 messages\n" in output
    assert "no offsets and no partitions\n\nno members\n" in output
    # Named twice, shown once.
    assert output.count("Group:") == 1


def test_without_execute_only_the_plan_is_shown(world: World) -> None:
    world.members = 1
    result = run("reset-offsets", "g", "-t", "t", "--to-earliest")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[1:] == [
        ["t", "0", "10", "4", "-6"],
        ["t", "1", "-", "0", "-", "the", "log", "begins", "here"],
    ]
    assert "there is 1 member." in result.stderr
    assert result.stderr.endswith("nothing was changed; --execute does it\n")
    assert world.executed == []


def test_a_plan_is_carried_out_only_while_nobody_uses_the_group(world: World) -> None:
    words = ("reset-offsets", "g", "--all-topics", "--to-earliest", "--execute", "--json")
    result = run(*words)
    assert [orjson.loads(line)["executed"] for line in result.stdout.splitlines()] == [True, True]
    assert world.executed == [(world.plan, False)]
    world.members = 2
    result = run(*words)
    assert result.exit_code == 1
    assert "group g cannot be reset while it is in use: there are 2 members." in result.output
    assert len(world.executed) == 1


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("scope", [(), ("--all-topics", "-t", "t")])
def test_offsets_to_be_moved_must_be_named_in_one_way(scope: tuple[str, ...]) -> None:
    result = run("reset-offsets", "g", "--to-latest", *scope)
    assert result.exit_code == 2
    assert "either --topic (repeatable) or --all-topics" in result.output


def test_a_group_in_use_is_not_deleted_and_the_others_are(world: World) -> None:
    world.outcomes = {
        "used": failed(KafkaError.NON_EMPTY_GROUP),
        "gone": failed(KafkaError.GROUP_ID_NOT_FOUND),
    }
    world.members = 3
    result = run("delete", "used", "gone", "old", "-y", "--if-exists")
    assert result.exit_code == 1
    assert result.stdout == "deleted old\n"
    assert "gone: is not there\n" in result.stderr
    assert "group used cannot be deleted while it is in use: there are 3 members." in result.stderr


@pytest.mark.usefixtures("world")
def test_each_offset_that_could_not_be_deleted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = {("t", 0): None, ("t", 1): "the group is subscribed to it"}
    monkeypatch.setattr(offset_deletion, "delete_offsets", lambda *_: outcome)
    result = run("delete-offsets", "g", "-t", "t", "-y")
    assert result.exit_code == 1
    assert result.stdout == "deleted the offset of t:0\n"
    assert result.stderr == "Error: t:1: the group is subscribed to it\n"


def test_a_share_group_is_shown_with_where_it_begins_and_who_shares(world: World) -> None:
    members = tuple(
        MemberState(member=name, client=name, host="h", instance=None, partitions=(("t", 0),))
        for name in ("a", "b")
    )
    world.state = replace(
        world.state,
        type="share",
        members=members,
        partitions=(PartitionState(topic="t", partition=0, committed=3, end=10, told_lag=5),),
    )
    lines = [line.split() for line in run("describe", "g").output.splitlines()]
    assert ["TOPIC", "PARTITION", "START", "END", "LAG", "LAG", "(S)", "OWNER"] in lines
    assert ["t", "0", "3", "10", "5", "2", "members"] in lines
    (partition,) = orjson.loads(run("describe", "g", "--json").output)["partitions"]
    assert (partition["start_offset"], partition["lag"]) == (3, 5)


def test_a_share_group_is_reset_and_forgets_whole_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("reset-offsets", "g", "--all-topics", "--to-earliest", "--execute")
    run(*words, "--share")
    world.is_share = True
    run(*words)
    assert world.executed == [(world.plan, True)] * 2
    monkeypatch.setattr(share_groups, "delete_offsets", lambda *_: {"t": None, "u": "nothing is there"})
    assert run("delete-offsets", "g", "-t", "t:0").exit_code == 2
    result = run("delete-offsets", "g", "-t", "t", "-t", "u")
    assert (result.exit_code, result.stdout) == (1, "deleted the offsets of t\n")
    assert "u: nothing is there" in result.stderr
