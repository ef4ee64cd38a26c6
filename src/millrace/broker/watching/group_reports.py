"""What groups are doing, for metrics and for the HTTP port: lag by partition, and each member's health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.classic.subscriptions import parse_assignment
from millrace.groups.commands import CommittedOffset
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.kinds import Group
from millrace.groups.lag import Lag, LagReader
from millrace.groups.machine import GroupMachine
from millrace.groups.service import Groups
from millrace.groups.share.group import ShareGroup
from millrace.groups.streams.endpoints import task_partitions
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.tasks import Role
from millrace.queues.state.commands import StateSummary

if TYPE_CHECKING:
    from millrace.metadata.image import Image

LISTED_MAX: Final = 1_000
"""How many groups one answer lists; `after` asks for those behind."""

Place = tuple[TopicId, int]
Summaries = Callable[[str, Sequence[Place]], Awaitable[Mapping[Place, StateSummary | MillraceError]]]
"""How far a share group has come in partitions, as their stored state says."""
FetchTimes = Callable[[], Mapping[tuple[str, str], int]]
"""When each (client id, host) last fetched records, as far as its connections are still open."""


class MemberHealth(NamedTuple):
    """One member of a group, and when it was last heard of."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    last_heartbeat_ms: int | None
    last_fetch_ms: int | None
    """When the client id on that host last fetched: a fetch does not say for which member it is."""
    last_commit_ms: int | None
    partitions: Mapping[str, Sequence[int]]


class PartitionReport(NamedTuple):
    """One partition that a group has committed to or that a member has."""

    topic: str
    partition: int
    committed: CommittedOffset | None
    lag: Lag | None
    member_id: str | None
    done_count: int = 0
    """How many records behind `committed` a share group is done with; `lag` is without them."""


class GroupReport(NamedTuple):
    """A group with its members and partitions."""

    group: Group
    members: list[MemberHealth]
    partitions: list[PartitionReport]


class GroupReports:
    """Reports on the groups that this broker coordinates."""

    def __init__(
        self,
        groups: Groups,
        lags: LagReader,
        clock: Clock,
        image: Callable[[], Image],
        fetch_times: FetchTimes,
        summaries: Summaries,
    ) -> None:
        self._groups = groups
        self._lags = lags
        self._clock = clock
        self._image = image
        self._fetch_times = fetch_times
        self._summaries = summaries

    async def all(self) -> list[GroupReport]:
        found = [
            (machine, group) for machine in self._groups.machines() for group in list(machine.groups.values())
        ]
        return await self._report(found)

    async def of(self, group_id: str) -> GroupReport | MillraceError | None:
        """One group; None if there is none, or why this broker cannot tell."""
        machine = self._groups.machine_of(group_id)
        if isinstance(machine, MillraceError):
            return machine
        group = machine.groups.get(group_id)
        return None if group is None else (await self._report([(machine, group)]))[0]

    async def page(self, after: str) -> tuple[list[GroupReport], bool]:
        """Groups in the order of their ids behind `after`, and whether there are more."""
        found = sorted(
            (
                (machine, group)
                for machine in self._groups.machines()
                for group in machine.groups.values()
                if group.group_id > after
            ),
            key=lambda each: each[1].group_id,
        )
        return await self._report(found[:LISTED_MAX]), len(found) > LISTED_MAX

    async def _report(self, found: Sequence[tuple[GroupMachine, Group]]) -> list[GroupReport]:
        fetch_times = self._fetch_times()
        image = self._image()
        wanted: list[tuple[str, int, int]] = []
        drafts: list[tuple[Group, list[MemberHealth], list[PartitionReport]]] = []
        for machine, group in found:
            members = list(_members(group, fetch_times, image))
            owners = {
                (topic, partition): member.member_id
                for member in members
                for topic, partitions in member.partitions.items()
                for partition in partitions
            }
            partitions = []
            for topic, partition, committed in machine.offsets.of_group(group.group_id):
                owner = owners.pop((topic, partition), None)
                partitions.append(PartitionReport(topic, partition, committed, None, owner))
                wanted.append((topic, partition, committed.offset))
            if isinstance(group, ShareGroup):
                for started in await self._share_starts(group, image):
                    assert started.committed is not None, started
                    owner = owners.pop((started.topic, started.partition), None)
                    partitions.append(started._replace(member_id=owner))
                    wanted.append((started.topic, started.partition, started.committed.offset))
            partitions += [
                PartitionReport(topic, partition, None, None, owner)
                for (topic, partition), owner in owners.items()
            ]
            drafts.append((group, members, partitions))
        lags = iter(await self._lags.measure(wanted))
        return [
            GroupReport(
                group,
                members,
                [each if each.committed is None else _with_lag(each, next(lags)) for each in partitions],
            )
            for group, members, partitions in drafts
        ]

    async def _share_starts(self, group: ShareGroup, image: Image) -> list[PartitionReport]:
        """Where a share group begins in the partitions that it has fetched from, in place of commits."""
        places = [
            (topic_id, number)
            for topic_id, numbers in group.state.assignable().items()
            if topic_id in image.topics_by_id
            for number in sorted(numbers)
        ]
        found: list[PartitionReport] = []
        for (topic_id, number), summary in (await self._summaries(group.group_id, places)).items():
            if isinstance(summary, MillraceError) or summary.start_offset < 0:
                continue
            start = CommittedOffset(summary.start_offset, summary.leader_epoch, "", -1, -1, topic_id)
            name = image.topics_by_id[topic_id].name
            done_count = max(0, summary.delivery_complete_count)
            found.append(PartitionReport(name, number, start, None, None, done_count))
        return found

    # As documents.

    def describe(self, report: GroupReport) -> dict[str, Any]:
        return {
            **self.summarise(report),
            "now_ms": self._clock.wall_ms(),
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "last_heartbeat_ms": member.last_heartbeat_ms,
                    "last_fetch_ms": member.last_fetch_ms,
                    "last_commit_ms": member.last_commit_ms,
                    "partitions": {topic: list(each) for topic, each in member.partitions.items()},
                }
                for member in report.members
            ],
            "partitions": [_described(each) for each in report.partitions],
        }

    def summarise(self, report: GroupReport) -> dict[str, Any]:
        group = report.group
        lags = [each.lag for each in report.partitions if each.lag is not None]
        ages = [lag.time_ms for lag in lags if lag.time_ms is not None]
        return {
            "group": group.group_id,
            "type": group.type_name,
            "state": group.state_name,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol if isinstance(group, ClassicGroup) else None,
            "generation": group.generation if isinstance(group, ClassicGroup) else group_epoch(group),
            "rebalance_reason": group.rebalance_reason if isinstance(group, ClassicGroup) else None,
            "member_count": len(report.members),
            "lag": sum(lag.messages for lag in lags),
            "lag_ms": max(ages, default=0),
        }


def group_epoch(group: Group) -> int | None:
    return group.epoch if isinstance(group, ConsumerGroup | StreamsGroup | ShareGroup) else None


def _with_lag(each: PartitionReport, lag: Lag | None) -> PartitionReport:
    if lag is not None and each.done_count:
        lag = lag._replace(messages=max(0, lag.messages - each.done_count))
    return each._replace(lag=lag)


def _described(each: PartitionReport) -> dict[str, Any]:
    committed, lag = each.committed, each.lag
    return {
        "topic": each.topic,
        "partition": each.partition,
        "member_id": each.member_id,
        "committed_offset": None if committed is None else committed.offset,
        "leader_epoch": None if committed is None else committed.leader_epoch,
        "metadata": None if committed is None else committed.metadata,
        "committed_ms": None if committed is None else committed.commit_ms,
        "end_offset": None if lag is None else lag.end_offset,
        "lag": None if lag is None else lag.messages,
        "lag_ms": None if lag is None else lag.time_ms,
    }


def _members(
    group: Group, fetch_times: Mapping[tuple[str, str], int], image: Image
) -> Iterator[MemberHealth]:
    if isinstance(group, ClassicGroup):
        for member in group.members.values():
            yield MemberHealth(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _known(member.last_heartbeat_ms),
                fetch_times.get((member.client_id, member.client_host)),
                _known(member.last_commit_ms),
                parse_assignment(member.assignment) or {},
            )
    elif isinstance(group, ConsumerGroup):
        for each in group.members.values():
            named = ((image.topics_by_id.get(topic_id), owned) for topic_id, owned in each.assigned.items())
            yield MemberHealth(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                group.last_heartbeat_ms.get(each.member_id),
                fetch_times.get((each.client_id, each.client_host)),
                group.last_commit_ms.get(each.member_id),
                {topic.name: sorted(owned) for topic, owned in named if topic is not None},
            )
    elif isinstance(group, ShareGroup):
        for sharer in group.members.values():
            shared = [(image.topics_by_id.get(topic), sorted(own)) for topic, own in sharer.assigned.items()]
            yield MemberHealth(
                sharer.member_id,
                None,
                sharer.client_id,
                sharer.client_host,
                group.last_heartbeat_ms.get(sharer.member_id),
                None,
                None,
                {topic.name: numbers for topic, numbers in shared if topic is not None},
            )
    elif isinstance(group, StreamsGroup):
        yield from _streams_members(group, fetch_times, image)


def _streams_members(
    group: StreamsGroup, fetch_times: Mapping[tuple[str, str], int], image: Image
) -> Iterator[MemberHealth]:
    """The members of a streams group, with the partitions that their active tasks read."""

    def partitions_of(name: str) -> int | None:
        topic = image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    for member in group.members.values():
        yield MemberHealth(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            group.last_heartbeat_ms.get(member.member_id),
            fetch_times.get((member.client_id, member.client_host)),
            group.last_commit_ms.get(member.member_id),
            {}
            if group.topology is None
            else dict(task_partitions(member, Role.ACTIVE, group.topology, partitions_of)),
        )


def _known(time_ms: int) -> int | None:
    return time_ms if time_ms >= 0 else None
