"""Dead letters back to where they came from, or elsewhere: each once, however often the command is stopped.

The copies of some letters and how far the letters are done are committed in one transaction. How far that is
is kept as committed offsets of a group for each share group and cause (`millrace-redrive.GROUP.CAUSE`), so
that filters by cause may follow each other in any order. Two commands for one group cannot run at once: the
later one takes the transactional id away from the earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import reading
from millrace.cli.queue.letters import Letter, read_letters, without_marks
from millrace.client.broker_client import BrokerClient, TopicInfo
from millrace.client.partitioner import partition_of
from millrace.client.transactional import (
    EncodedBatch,
    Marker,
    TaskProducer,
    end_transaction,
    init_producer,
    read_marker,
)
from millrace.core.ids import TopicPartition
from millrace.wire.compression import Codec
from millrace.wire.records import Record, append_record

BATCH_LETTERS: Final = 500
"""So many go in one transaction at most."""
BATCH_BYTES: Final = 512 << 10
"""With so many bytes a transaction is full."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
PREFIX: Final = "millrace-redrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """What is asked for."""

    group: str
    topic: str
    """Where the letters are."""
    causes: tuple[str, ...]
    target: str | None = None
    """None: each to the topic and partition that it came from."""
    rate: float | None = None


class Portion(NamedTuple):
    """Some letters of one partition, and up to which offset all letters before are done with them."""

    partition: int
    letters: Sequence[Letter]
    next_offset: int


def progress_group(group: str, cause: str) -> str:
    return f"{PREFIX}.{group}.{cause}"


def portions(client: BrokerClient, wanted: Redrive, *, letters_max: int) -> Iterator[Portion]:
    """What is left to do, in pieces that fit into a transaction each."""
    topic = reading.topic_named(client, wanted.topic)
    for partition, offsets in reading.bounds(client, topic).items():
        begins = _begins(client, wanted, TopicPartition(wanted.topic, partition))
        start = max(min(begins.values()), offsets.start)
        waiting: list[Letter] = []
        size_bytes = 0
        for letter in read_letters(client, topic, partition, range(start, offsets.stop), group=wanted.group):
            if letter.cause not in begins or letter.record.offset < begins[letter.cause]:
                continue
            if waiting and (len(waiting) >= letters_max or size_bytes >= BATCH_BYTES):
                yield Portion(partition, waiting, waiting[-1].record.offset + 1)
                waiting, size_bytes = [], 0
            waiting.append(letter)
            size_bytes += len(letter.record.key or b"") + len(letter.record.value or b"")
        if waiting:
            yield Portion(partition, waiting, offsets.stop)


def redrive(
    client: BrokerClient, wanted: Redrive, done: Callable[[int], None], *, sleep: Callable[[float], None]
) -> int:
    """Do it, and return how many letters went out; `done` hears of each transaction."""
    letters_max = BATCH_LETTERS if wanted.rate is None else min(BATCH_LETTERS, max(1, int(wanted.rate)))
    transactional_id = f"{PREFIX}.{wanted.group}"
    # Ends what an earlier command left open, before anybody looks how far it came.
    _ = init_producer(client, transactional_id, TRANSACTION_TIMEOUT_MS)
    targets: dict[str, TopicInfo] = {}
    began, count = time.monotonic(), 0
    for portion in portions(client, wanted, letters_max=letters_max):
        identity = init_producer(client, transactional_id, TRANSACTION_TIMEOUT_MS)
        producer = TaskProducer(client, identity, timeout_ms=TRANSACTION_TIMEOUT_MS)
        try:
            producer.produce(batches(client, portion, wanted.target, targets, now_ms=int(time.time() * 1000)))
            place = TopicPartition(wanted.topic, portion.partition)
            for cause in wanted.causes:
                producer.mark(progress_group(wanted.group, cause), place, Marker(portion.next_offset, ""))
            end_transaction(client, identity, is_commit=True)
        except BaseException:
            producer.abort()
            raise
        count += len(portion.letters)
        done(len(portion.letters))
        if wanted.rate is not None:
            sleep(max(0.0, began + count / wanted.rate - time.monotonic()))
    return count


def batches(
    client: BrokerClient, portion: Portion, target: str | None, targets: dict[str, TopicInfo], *, now_ms: int
) -> list[EncodedBatch]:
    """The records that were given up, for the partitions where they belong, in their order."""
    by_place: dict[TopicPartition, list[Record]] = {}
    for letter in portion.letters:
        name = target or letter.origin.source.topic
        if name not in targets:
            targets[name] = reading.topic_named(client, name)
        place = TopicPartition(name, _partition(letter, len(targets[name].partitions), target))
        by_place.setdefault(place, []).append(without_marks(letter.record, now_ms))
    return [_encoded(place, records, now_ms) for place, records in by_place.items()]


def require_other_topic(wanted: Redrive) -> None:
    if wanted.target == wanted.topic:
        raise RequestFailed(f"{wanted.topic} is where the dead letters are: name another topic")


def _begins(client: BrokerClient, wanted: Redrive, place: TopicPartition) -> dict[str, int]:
    """From where on the letters of each cause are not done."""
    markers = {
        cause: read_marker(client, progress_group(wanted.group, cause), place) for cause in wanted.causes
    }
    return {cause: 0 if marker is None else marker.offset for cause, marker in markers.items()}


def _partition(letter: Letter, partitions: int, target: str | None) -> int:
    """Where it came from, as far as that is there; elsewhere by its key, as producers choose."""
    if target is None and letter.origin.source.partition < partitions:
        return letter.origin.source.partition
    key = letter.record.key
    return letter.record.offset % partitions if key is None else partition_of(key, partitions)


def _encoded(place: TopicPartition, records: Sequence[Record], now_ms: int) -> EncodedBatch:
    payload = bytearray()
    for number, record in enumerate(records):
        append_record(payload, number, 0, record)
    return EncodedBatch(place, len(records), now_ms, now_ms, Codec.NONE, bytes(payload))
