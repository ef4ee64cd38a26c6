"""Emptying a queue: its group goes on at the end of its partitions, and the records stay for others."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from millrace.cli.clients import RequestFailed
from millrace.cli.group import share_groups
from millrace.cli.group.share_groups import Partition
from millrace.cli.options import BrokerAddress
from millrace.cli.queue import group_settings, reading

PAUSE_S: Final = 5.0
"""How long all brokers get to hear that a group is paused."""


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
    """Let the group go on there. With members, it is paused meanwhile: brokers move no group that delivers.
    What its members still have in hand is passed over, too."""
    found = share_groups.find(address, group)
    if found is None or not found.members:
        share_groups.alter(address, group, ends)
        return
    with share_groups.open_client(address) as client:
        was_paused = group_settings.settings_of(client, group).get(group_settings.PAUSE)
        group_settings.change(client, group, {group_settings.PAUSE: "true"})
        try:
            _alter_paused(address, group, ends)
        finally:
            if was_paused != "true":
                group_settings.change(client, group, {group_settings.PAUSE: was_paused})


def _alter_paused(address: BrokerAddress, group: str, ends: dict[Partition, int]) -> None:
    deadline = time.monotonic() + PAUSE_S
    while True:
        try:
            share_groups.alter(address, group, ends)
            return
        except RequestFailed:
            # The coordinator may not have heard of the pause yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
