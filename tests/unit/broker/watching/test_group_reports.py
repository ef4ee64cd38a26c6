"""How groups are doing: members with their health, partitions with their lag, and pages of many groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from millrace.broker.watching import group_reports
from millrace.broker.watching.group_reports import GroupReport, GroupReports
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.errors import MillraceError
from millrace.groups.commands import CommitOffsets, OffsetToCommit
from millrace.groups.lag import Lag, LagReader
from millrace.groups.machine import GroupMachine
from millrace.groups.service import Groups
from millrace.metadata.image import EMPTY
from millrace.queues.state.commands import StateSummary
from tests.unit.groups.share_lab import ShareLab
from tests.unit.groups.streams.topologies import word_count
from tests.unit.groups.streams_lab import StreamsClient, StreamsLab, settled
from tests.unit.groups.worlds import NOW_MS, World

ASSIGNED = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\1" + b"\0\0\0\0"
"""Partitions 0 and 1 of topic t, as a leader writes it (version 0)."""


class LocalGroups:
    """One partition of groups; those of one name live elsewhere."""

    def __init__(self, machine: GroupMachine) -> None:
        self._machine = machine

    def machines(self) -> Iterator[GroupMachine]:
        yield self._machine

    def machine_of(self, group_id: str) -> GroupMachine | MillraceError:
        return CoordinatorNotAvailable("elsewhere") if group_id == "away" else self._machine


class Lags:
    async def measure(self, wanted: Sequence[tuple[str, int, int]]) -> list[Lag]:
        return [Lag(end_offset=100, messages=100 - offset, time_ms=offset) for _, _, offset in wanted]


class Clock:
    def wall_ms(self) -> int:
        return NOW_MS


async def no_summaries(_group_id: str, _places: object) -> dict[Any, Any]:
    return {}


def reports_of(world: World) -> GroupReports:
    return GroupReports(
        cast("Groups", LocalGroups(world.machine)),
        cast("LagReader", Lags()),
        Clock(),
        lambda: EMPTY,
        lambda: {("c", "/h"): NOW_MS - 500},
        no_summaries,
    )


def world_with_a_member() -> tuple[World, str]:
    world = World()
    token = world.join()
    world.advance(0)
    joined = world.joined(token)
    world.sync(joined, {joined.member_id: ASSIGNED})
    world.submit(
        CommitOffsets(
            group_id="g",
            member_id=joined.member_id,
            generation=joined.generation,
            offsets=[OffsetToCommit("t", 0, 40, 3, "note")],
        )
    )
    return world, joined.member_id


def report_of(world: World, group_id: str = "g") -> GroupReport:
    report = asyncio.run(reports_of(world).of(group_id))
    assert isinstance(report, GroupReport), report
    return report


def test_a_member_with_what_it_did_and_what_it_owns() -> None:
    world, member_id = world_with_a_member()
    (member,) = report_of(world).members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "c", "/h")
    assert member.last_fetch_ms == NOW_MS - 500
    assert member.last_commit_ms == NOW_MS
    assert {topic: list(numbers) for topic, numbers in member.partitions.items()} == {"t": [0, 1]}


def test_partitions_with_their_lag_and_those_without_a_commit() -> None:
    world, member_id = world_with_a_member()
    first, second = report_of(world).partitions
    assert first.committed is not None
    assert (first.partition, first.committed.offset, first.member_id) == (0, 40, member_id)
    assert first.lag == Lag(100, 60, 40)
    assert (second.partition, second.committed, second.lag, second.member_id) == (1, None, None, member_id)


def test_a_group_as_a_document() -> None:
    world, member_id = world_with_a_member()
    found: dict[str, Any] = reports_of(world).describe(report_of(world))
    assert (found["group"], found["type"], found["state"]) == ("g", "classic", "Stable")
    assert (found["lag"], found["lag_ms"], found["member_count"]) == (60, 40, 1)
    assert found["members"][0]["partitions"] == {"t": [0, 1]}
    assert found["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "member_id": member_id,
        "committed_offset": 40,
        "leader_epoch": 3,
        "metadata": "note",
        "committed_ms": NOW_MS,
        "end_offset": 100,
        "lag": 60,
        "lag_ms": 40,
    }


def test_a_streams_group_with_the_partitions_of_its_tasks() -> None:
    lab = StreamsLab()
    for topic in ("words", "regrouped", "counts-changelog"):
        lab.set_topic(topic, 2)
    client = StreamsClient("m", word_count())
    settled(lab, client)
    reports = GroupReports(
        cast("Groups", LocalGroups(lab.machine)),
        cast("LagReader", Lags()),
        Clock(),
        lambda: lab.image,
        dict,
        no_summaries,
    )
    report = asyncio.run(reports.of("g"))
    assert isinstance(report, GroupReport)
    found: dict[str, Any] = reports.describe(report)
    assert (found["type"], found["state"], found["generation"]) == ("streams", "Stable", client.epoch)
    (member,) = found["members"]
    assert member["partitions"] == {"words": [0, 1], "regrouped": [0, 1]}
    assert member["last_heartbeat_ms"] == lab.now_ms


def test_a_share_group_with_where_it_begins_and_what_it_has_not_done() -> None:
    lab = ShareLab()
    lab.set_topic("t", 3)
    lab.join("m")

    async def summaries(group_id: str, places: Sequence[Any]) -> dict[Any, Any]:
        assert group_id == "g"
        found = [StateSummary(1, 7, 40, 15), StateSummary(1, 7, -1, -1), CoordinatorNotAvailable("away")]
        return dict(zip(places, found, strict=True))

    reports = GroupReports(
        cast("Groups", LocalGroups(lab.machine)),
        cast("LagReader", Lags()),
        Clock(),
        lambda: lab.image,
        dict,
        summaries,
    )
    report = asyncio.run(reports.of("g"))
    assert isinstance(report, GroupReport)
    found: dict[str, Any] = reports.describe(report)
    assert (found["type"], found["lag"], found["lag_ms"]) == ("share", 45, 40)
    first, *others = found["partitions"]
    assert (first["committed_offset"], first["lag"], first["member_id"]) == (40, 45, "m")
    assert [(each["partition"], each["lag"]) for each in others] == [(1, None), (2, None)]
    (member,) = found["members"]
    assert member["partitions"] == {"t": [0, 1, 2]}


def test_groups_that_are_not_here() -> None:
    world, _ = world_with_a_member()
    assert asyncio.run(reports_of(world).of("nobody")) is None
    assert isinstance(asyncio.run(reports_of(world).of("away")), CoordinatorNotAvailable)


def test_many_groups_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_reports, "LISTED_MAX", 2)
    world = World()
    for name in "cab":
        world.submit(CommitOffsets(group_id=name, offsets=[OffsetToCommit("t", 0, 1, 0, "")]))
    reports = reports_of(world)
    page, has_more = asyncio.run(reports.page(""))
    assert ([each.group.group_id for each in page], has_more) == (["a", "b"], True)
    page, has_more = asyncio.run(reports.page("b"))
    assert ([each.group.group_id for each in page], has_more) == (["c"], False)
    assert len(asyncio.run(reports.all())) == 3
