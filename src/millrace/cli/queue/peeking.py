"""What waits in a queue, read without acquiring it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from millrace.cli.clients import RequestFailed
from millrace.cli.group import share_groups
from millrace.cli.messages.records import Message
from millrace.cli.options import BrokerAddress
from millrace.cli.queue import group_settings, reading
from millrace.client.broker_client import BrokerClient


def first_messages(
    address: BrokerAddress, group: str, topics: Collection[str], limit: int
) -> Iterator[Message]:
    """Messages from where the group's partitions begin, one partition after the other."""
    if share_groups.find(address, group) is None:
        raise RequestFailed(f"no such share group: {group}")
    progress = share_groups.progress(address, group)
    unknown = sorted(set(topics) - {topic for topic, _ in progress})
    if unknown:
        raise RequestFailed(f"group {group} has nothing to do with topic {unknown[0]}")
    with share_groups.open_client(address) as client:
        begins_early = (
            group_settings.settings_of(client, group).get(group_settings.OFFSET_RESET) == "earliest"
        )
        starts = {
            place: known.start if known.start is not None else (0 if begins_early else None)
            for place, known in progress.items()
            if not topics or place[0] in topics
        }
        yield from islice(_messages(client, starts), limit)


def _messages(client: BrokerClient, starts: dict[share_groups.Partition, int | None]) -> Iterator[Message]:
    for name in sorted({topic for topic, _ in starts}):
        topic = reading.topic_named(client, name)
        for number, offsets in reading.bounds(client, topic).items():
            start = starts.get((name, number))
            if start is None:
                # Nobody has fetched yet, so the group begins behind what is there.
                continue
            for record in reading.read(client, topic, number, range(max(start, offsets.start), offsets.stop)):
                yield Message(
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=number,
                    timestamp_ms=record.timestamp,
                    offset=record.offset,
                    topic=name,
                )
