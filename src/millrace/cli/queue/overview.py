"""How queues are doing: from their coordinators, from the logs, and what brokers' HTTP ports add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka.admin import AdminClient

from millrace.cli.clients import RequestFailed
from millrace.cli.group import health, other_kinds, share_groups
from millrace.cli.group.share_groups import Partition
from millrace.cli.options import BrokerAddress
from millrace.cli.queue import group_settings, reading
from millrace.client.broker_client import BrokerClient, TopicInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePartition:
    """How far a queue is in one partition; None where nobody knows."""

    topic: str
    partition: int
    start: int | None
    end: int | None
    depth: int | None
    oldest_ms: int | None
    """When the first record that is not done was produced."""
    in_flight: int | None = None
    dead_letters_waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A share group and the partitions that it is about."""

    group: str
    state: str
    members: tuple[Any, ...]
    partitions: tuple[QueuePartition, ...]
    settings: Mapping[str, str]
    dead_letters: int | None
    """How many records the group's dead-letter topic has; None without one."""
    counts: Mapping[str, int] | None = None
    """What brokers have counted since the group came to them; None where none tells."""
    stopped: str = ""
    """Why nothing is delivered; empty while all is well."""

    @property
    def depth(self) -> int:
        return sum(each.depth for each in self.partitions if each.depth is not None)

    @property
    def oldest_ms(self) -> int | None:
        return min((each.oldest_ms for each in self.partitions if each.oldest_ms is not None), default=None)

    @property
    def in_flight(self) -> int | None:
        known = [each.in_flight for each in self.partitions if each.in_flight is not None]
        return sum(known) if known else (None if self.counts is None else 0)


def names(address: BrokerAddress) -> list[str]:
    """All share groups."""
    found = other_kinds.list_others(address)
    return sorted(each.group for each in found if each.type == share_groups.SHARE)


def urls(admin: AdminClient, address: BrokerAddress) -> list[str]:
    """The HTTP ports of all brokers that have one."""
    with share_groups.open_client(address) as client:
        nodes = client.nodes()
    found = (health.url_of(admin, address, node_id, host) for node_id, (host, _) in nodes.items())
    return [url for url in found if url]


def look(address: BrokerAddress, name: str, http: Iterable[str]) -> Queue:
    """One queue; RequestFailed if there is no share group of this name."""
    group = share_groups.find(address, name)
    if group is None:
        raise RequestFailed(f"no such share group: {name}")
    progress = share_groups.progress(address, name)
    with share_groups.open_client(address) as client:
        settings = group_settings.settings_of(client, name)
        topics = client.metadata({topic for topic, _ in progress})
        partitions = tuple(
            each for topic in sorted(topics) for each in _partitions(client, topics[topic], progress)
        )
        dead_letters = _dead_letters(client, settings.get(group_settings.DEAD_LETTER_TOPIC, ""))
    queue = Queue(
        group=name,
        state=group.state,
        members=group.members,
        partitions=partitions,
        settings=settings,
        dead_letters=dead_letters,
        stopped="paused" if settings.get(group_settings.PAUSE) == "true" else "",
    )
    reports = [report for url in http if (report := health.fetched(url, "queues", name)) is not None]
    return with_reports(queue, reports)


def with_reports(queue: Queue, reports: Iterable[Mapping[str, Any]]) -> Queue:
    """The same queue with what brokers tell of the share partitions that they lead."""
    counts: dict[str, int] = {}
    live: dict[Partition, Mapping[str, Any]] = {}
    stopped = queue.stopped
    told = False
    for report in reports:
        told = True
        for what, number in report["counts"].items():
            counts[what] = counts.get(what, 0) + number
        live |= {(each["topic"], each["partition"]): each for each in report["partitions"]}
        if not stopped and any(not each["is_delivering"] for each in report["partitions"]):
            stopped = "stopped by its dead letters"
    if not told:
        return queue
    partitions = tuple(
        replace(each, in_flight=here["in_flight"], dead_letters_waiting=here["dead_letters_waiting"])
        if (here := live.get((each.topic, each.partition))) is not None
        else each
        for each in queue.partitions
    )
    return replace(queue, counts=counts, partitions=partitions, stopped=stopped)


def _partitions(
    client: BrokerClient, topic: TopicInfo, progress: Mapping[Partition, share_groups.Progress]
) -> Iterable[QueuePartition]:
    offsets = reading.bounds(client, topic)
    for number, whole in offsets.items():
        known = progress.get((topic.name, number))
        if known is None:
            continue
        oldest = None
        if known.start is not None and known.lag:
            waiting = range(max(known.start, whole.start), whole.stop)
            oldest = reading.first_record(client, topic, number, waiting)
        yield QueuePartition(
            topic=topic.name,
            partition=number,
            start=known.start,
            end=whole.stop,
            depth=known.lag,
            oldest_ms=None if oldest is None else oldest.timestamp,
        )


def _dead_letters(client: BrokerClient, topic: str) -> int | None:
    if not topic:
        return None
    found = client.metadata([topic]).get(topic)
    return 0 if found is None else sum(map(len, reading.bounds(client, found).values()))
