"""What waits, read from the topic that keeps delayed messages, with bounded memory.

A message is pending from its record on until an intent, a settlement or a cancellation names it, and these
come behind it in the same partition. So one pass is enough. Of more messages than fit, those due first
are kept; what is due later than one that had to go is not told, because some of it is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from millrace.cli import broker_requests, clients
from millrace.cli.output import Progress, progress
from millrace.core.ids import TopicId
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.codec import (
    MOVED,
    REPEATED,
    Cancelled,
    Intent,
    MalformedRecord,
    MessageId,
    Settled,
    StoredMessage,
    decode,
)
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from millrace.cli.options import BrokerAddress

KEPT_MAX: Final = 100_000
METADATA_VERSION: Final = 12
MESSAGES_PER_CALL: Final = 10_000
Wanted = Callable[[StoredMessage], bool]


@dataclass(slots=True)
class Pending:
    """The messages of one partition of the store that are asked for and still wait."""

    wanted: Wanted
    kept_max: int = KEPT_MAX
    pending_count: int = 0
    """Of all, asked for or not. Those that are cancelled count until their time."""
    complete_before_ms: int | None = None
    """From this due time on some are missing, because there are too many."""
    _by_offset: dict[int, StoredMessage] = field(default_factory=dict)
    _by_id: dict[MessageId, int] = field(default_factory=dict)
    _cancelled: dict[MessageId, None] = field(default_factory=dict)
    _latest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (-due, offset), with entries that are gone by now."""

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take in one record of the store; one that nobody can read is skipped, as the store does."""
        try:
            record = decode(key, value)
        except MalformedRecord:
            return
        match record:
            case StoredMessage():
                self._store(offset, record)
            case Cancelled(message_id):
                self._cancel(message_id)
            case Intent(entries=entries, is_again=is_again):
                if not is_again:
                    self._settle(entries)
            case Settled(entries):
                self._settle(entries)
            case _:
                # What was carried out, and records of a later release: neither ends a message's waiting.
                pass

    def messages(self) -> list[StoredMessage]:
        """Those that are asked for, as far as all are known."""
        end_ms = self.complete_before_ms
        return [each for each in self._by_offset.values() if end_ms is None or each.due_ms < end_ms]

    def _store(self, offset: int, stored: StoredMessage) -> None:
        if stored.replaces >= 0:
            self._cancel(stored.id._replace(offset=stored.replaces))
        if stored.flags & REPEATED and stored.id in self._by_id:
            return
        self.pending_count += 1
        if not self.wanted(stored) or (stored.flags & MOVED and stored.id in self._cancelled):
            return
        self._by_offset[offset] = stored
        self._by_id[stored.id] = offset
        heappush(self._latest, (-stored.due_ms, offset))
        if len(self._by_offset) > self.kept_max:
            self._drop_latest()

    def _drop_latest(self) -> None:
        while self._latest:
            negative_due, offset = heappop(self._latest)
            stored = self._by_offset.pop(offset, None)
            if stored is None:
                continue
            self._by_id.pop(stored.id, None)
            end_ms = self.complete_before_ms
            self.complete_before_ms = -negative_due if end_ms is None else min(end_ms, -negative_due)
            return

    def _cancel(self, message_id: MessageId) -> None:
        offset = self._by_id.pop(message_id, None)
        if offset is not None:
            del self._by_offset[offset]
        if len(self._cancelled) < 10 * self.kept_max:
            self._cancelled[message_id] = None

    def _settle(self, entries: Iterable[tuple[int, int]]) -> None:
        for _, offset in entries:
            self.pending_count -= 1
            stored = self._by_offset.pop(offset, None)
            if stored is not None and self._by_id.get(stored.id) == offset:
                del self._by_id[stored.id]
        if len(self._latest) > 2 * len(self._by_offset) + self.kept_max:
            self._latest = [(-stored.due_ms, offset) for offset, stored in self._by_offset.items()]
            heapify(self._latest)


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at the store came to."""

    messages: list[StoredMessage]
    """In the order in which they are due."""
    pending_count: int
    complete_before_ms: int | None


def topic_names(address: BrokerAddress) -> Mapping[TopicId, str]:
    """All topics by id: the store knows them by nothing else."""
    with broker_requests.connected(address) as connection:
        answer = connection.ask(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None))
    return {topic.topic_id: topic.name for topic in answer.topics if topic.name}


def read_store(address: BrokerAddress, wanted: Wanted, *, kept_max: int = KEPT_MAX) -> Found:
    """Read all that the store holds at this moment. Where nothing was ever delayed there is no store."""
    consumer = clients.consumer(address, {"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        metadata = clients.cluster_metadata(consumer, address)
        topic = metadata.topics.get(DELAYED_TOPIC)
        partitions = sorted(topic.partitions) if topic is not None else []
        read = {index: Pending(wanted, kept_max) for index in partitions}
        ends = _ends(consumer, address, partitions)
        total = sum(end - start for start, end in ends.values())
        with progress("reading delayed messages", total=total) as shown:
            _read(consumer, address, read, ends, shown)
    finally:
        consumer.close()
    limits = [each.complete_before_ms for each in read.values() if each.complete_before_ms is not None]
    end_ms = min(limits, default=None)
    messages = [each for pending in read.values() for each in pending.messages()]
    messages = [each for each in messages if end_ms is None or each.due_ms < end_ms]
    messages.sort(key=lambda each: (each.due_ms, each.id))
    return Found(messages, sum(each.pending_count for each in read.values()), end_ms)


def read_first(address: BrokerAddress, wanted: Wanted, limit: int) -> Found:
    """At least so many of those that are due first, if there are as many. Where many were stored that are
    delivered by now, they have pushed out others that wait: these are read in another pass."""
    found = read_store(address, wanted)
    while len(found.messages) < limit and (from_ms := found.complete_before_ms) is not None:
        more = read_store(address, partial(_is_wanted_from, wanted, from_ms))
        messages = [*found.messages, *more.messages]
        found = Found(messages, more.pending_count, more.complete_before_ms)
        if more.complete_before_ms == from_ms:
            # More than fit are due at the same moment.
            break
    return found


def _is_wanted_from(wanted: Wanted, from_ms: int, stored: StoredMessage) -> bool:
    return stored.due_ms >= from_ms and wanted(stored)


def _ends(
    consumer: Consumer, address: BrokerAddress, partitions: Iterable[int]
) -> dict[int, tuple[int, int]]:
    from confluent_kafka import TopicPartition

    ends = {}
    for index in partitions:
        with clients.explained(f"{DELAYED_TOPIC}-{index}"):
            start, end = consumer.get_watermark_offsets(
                TopicPartition(DELAYED_TOPIC, index), timeout=address.timeout_s
            )
        if end > start:
            ends[index] = (start, end)
    return ends


def _read(
    consumer: Consumer,
    address: BrokerAddress,
    read: Mapping[int, Pending],
    ends: Mapping[int, tuple[int, int]],
    shown: Progress,
) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    left = dict.fromkeys(ends)
    with clients.explained(DELAYED_TOPIC):
        consumer.assign([TopicPartition(DELAYED_TOPIC, index, start) for index, (start, _) in ends.items()])
    last_at = time.monotonic()
    while left:
        with clients.explained(DELAYED_TOPIC):
            messages = consumer.consume(MESSAGES_PER_CALL, 0.5)
        for message in messages:
            index = message.partition() or 0
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                with clients.explained(DELAYED_TOPIC):
                    raise KafkaException(error)
            offset = message.offset() or 0
            if error is None and offset < ends[index][1]:
                read[index].apply(offset, message.key(), message.value())
            if error is not None or offset >= ends[index][1] - 1:
                left.pop(index, None)
        if messages:
            last_at = time.monotonic()
            shown.advance(len(messages), note=f"{len(left)} of {len(ends)} partitions left")
        elif time.monotonic() - last_at > address.timeout_s:
            raise clients.RequestFailed(f"{DELAYED_TOPIC}: no answer within {address.timeout_s:g} s")
