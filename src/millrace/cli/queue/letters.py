"""Dead letters as the command line sees them: whose they are, and why their records were given up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import click

from millrace.cli.queue import reading
from millrace.client.broker_client import BrokerClient, TopicInfo
from millrace.queues.dead_letters import HEADER_PREFIX, Origin, origin_of
from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.wire.records import Record

CAUSES: Final = {
    DeadLetterCause.REJECTED: "rejected",
    DeadLetterCause.DELIVERY_LIMIT: "delivery-limit",
    DeadLetterCause.EXPIRED: "expired",
    None: "other",
}
"""As options and tables name them."""
CAUSE_NAMES: Final = tuple(CAUSES.values())


class Letter(NamedTuple):
    """One dead letter where it lies."""

    partition: int
    record: Record
    origin: Origin

    @property
    def cause(self) -> str:
        return CAUSES[self.origin.cause]


class Heap(NamedTuple):
    """Dead letters of the same group, source and cause."""

    group: str
    topic: str
    cause: str


class Count(NamedTuple):
    letters: int
    first_ms: int
    last_ms: int


def dead_letter_topic(settings: Mapping[str, str], setting: str, group: str, given: str | None) -> str:
    """The topic that was named, or that the group's setting names."""
    name = given or settings.get(setting, "")
    if not name:
        raise click.UsageError(
            f"group {group} has no dead-letter topic ({setting} is not set): name one with --topic"
        )
    return name


def read_letters(
    client: BrokerClient, topic: TopicInfo, partition: int, offsets: range, *, group: str | None
) -> Iterator[Letter]:
    """The dead letters among a partition's records, of one group or of all."""
    for record in reading.read(client, topic, partition, offsets):
        origin = origin_of(record)
        if origin is not None and (group is None or origin.source.group_id == group):
            yield Letter(partition, record, origin)


def count(letters: Iterator[Letter], causes: Collection[str], sources: Collection[str]) -> dict[Heap, Count]:
    """How many there are of each kind; empty filters let all through."""
    found: dict[Heap, Count] = {}
    for letter in letters:
        source = letter.origin.source
        if (causes and letter.cause not in causes) or (sources and source.topic not in sources):
            continue
        at_ms = letter.record.timestamp
        heap = Heap(source.group_id, source.topic, letter.cause)
        before = found.get(heap, Count(0, at_ms, at_ms))
        found[heap] = Count(before.letters + 1, min(before.first_ms, at_ms), max(before.last_ms, at_ms))
    return dict(sorted(found.items()))


def without_marks(record: Record, timestamp_ms: int) -> Record:
    """The record that was given up, as it was before: what its letter adds is left out."""
    kept = tuple(each for each in record.headers if not each[0].startswith(HEADER_PREFIX))
    return record._replace(headers=kept, timestamp=timestamp_ms)
