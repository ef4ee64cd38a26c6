"""Emptying a queue: its group goes on at the end of its partitions, and the records stay for others."""

from __future__ import annotations

from typing import NamedTuple

from millrace.cli.clients import RequestFailed
from millrace.cli.group import share_groups
from millrace.cli.group.share_groups import Partition
from millrace.cli.options import BrokerAddress
from millrace.cli.queue import reading


class Purge(NamedTuple):
    """What is to be passed over: up to which offset of each partition, and how many records that are."""

    ends: dict[Partition, int]
    records: int


def plan(address: BrokerAddress, group: str) -> Purge:
    """Up to the ends of now; RequestFailed if there is no such share group."""
    if share_groups.find(address, group) is None:
        raise RequestFailed(f"no such share group: {group}")
    progress = share_groups.progress(address, group)
    ends: dict[Partition, int] = {}
    with share_groups.open_client(address) as client:
        for topic in client.metadata({name for name, _ in progress}).values():
            for number, offsets in reading.bounds(client, topic, isolation=0).items():
                if (topic.name, number) in progress:
                    ends[topic.name, number] = offsets.stop
    return Purge(ends, sum(each.lag or 0 for each in progress.values()))


def purge(address: BrokerAddress, group: str, ends: dict[Partition, int]) -> None:
    """Let the group go on there. Brokers allow that only while it has no members."""
    found = share_groups.find(address, group)
    if found is not None and found.members:
        count = len(found.members)
        raise RequestFailed(
            f"group {group} has {count} member{'' if count == 1 else 's'}: stop them first, since a group "
            "can be moved only while it has none (one that has crashed leaves after its session time-out)"
        )
    share_groups.alter(address, group, ends)
