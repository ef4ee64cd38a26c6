"""What still waits, from the records of the store, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from millrace.cli import broker_requests, clients
from millrace.cli.delayed import reading
from millrace.cli.delayed.reading import Pending
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.codec import (
    Intent,
    Target,
    encode_added,
    encode_intent,
    encode_moved,
    encode_settled,
)
from millrace.wire.api_keys import ApiKey
from tests.unit.cli.fakes import ADDRESS, FakeBroker
from tests.unit.queues.delayed.messages import TOPIC_ID, record, stored

Stored = tuple[bytes, bytes]


def pending_of(*records: Stored, **options: Any) -> Pending:
    pending = Pending(options.pop("wanted", lambda _: True), **options)
    for offset, (key, value) in enumerate(records):
        pending.apply(offset, key, value)
    return pending


def cancellation_of(offset: int) -> Stored:
    return encode_added(record(9, replaces=offset)._replace(is_cancellation=True))


def offsets(pending: Pending) -> list[int]:
    return sorted(message.id.offset for message in pending.messages())


def test_what_is_delivered_settled_cancelled_or_replaced_waits_no_more() -> None:
    delivery = Intent(Target(TOPIC_ID, 0), 1, 0, 0, False, ((2_000, 0),))
    pending = pending_of(
        *(encode_added(record(number)) for number in range(5)),
        encode_intent(delivery),
        encode_intent(delivery._replace(is_again=True)),
        encode_settled([(2_000, 1)]),
        cancellation_of(2),
        encode_added(record(10, replaces=3)),
    )
    assert offsets(pending) == [4, 10]
    # The cancelled and the replaced one count until their time: the store settles them then.
    assert pending.pending_count == 4


def test_a_message_that_is_stored_twice_is_one() -> None:
    pending = pending_of(encode_added(record(0)), encode_added(record(0), is_repeated=True))
    assert (offsets(pending), pending.pending_count) == ([0], 1)


def test_a_message_that_was_moved_stays_what_it_was() -> None:
    moved = [encode_settled([(2_000, 0)]), encode_moved(stored(record(0)), 0)]
    assert offsets(pending_of(encode_added(record(0)), *moved)) == [0]
    cancelled = cancellation_of(0)
    assert offsets(pending_of(encode_added(record(0)), cancelled, *moved)) == []


def test_of_too_many_those_are_told_that_are_due_first() -> None:
    records = [encode_added(record(number, 9_000 - number)) for number in range(8)]
    pending = pending_of(*records, encode_settled([(8_993, 7)]), kept_max=3)
    assert pending.complete_before_ms == 8_996
    assert offsets(pending) == [5, 6]
    assert pending.pending_count == 7


def test_only_what_is_asked_for_is_kept_and_records_that_nobody_can_read_are_skipped() -> None:
    pending = pending_of(
        encode_added(record(0)), encode_added(record(1)), (b"", b""), wanted=lambda each: each.id.offset == 1
    )
    assert (offsets(pending), pending.pending_count) == ([1], 2)


class FakeConsumer:
    def __init__(self, records: dict[int, list[Stored]]) -> None:
        self._records = records
        self.is_closed = False

    def list_topics(self, **_: object) -> Any:
        return SimpleNamespace(topics={DELAYED_TOPIC: SimpleNamespace(partitions=dict(self._records))})

    def get_watermark_offsets(self, place: Any, **_: object) -> tuple[int, int]:
        return 0, len(self._records[place.partition])

    def assign(self, places: list[Any]) -> None:
        self._rest = self._messages([place.partition for place in places])

    def _messages(self, partitions: list[int]) -> Iterator[Any]:
        for index in partitions:
            for offset, (key, value) in enumerate(self._records[index]):
                yield self._message(index, offset, None, key, value)
            yield self._message(index, 99, KafkaError(KafkaError._PARTITION_EOF))

    @staticmethod
    def _message(
        index: int, offset: int, error: Any, key: bytes | None = None, value: bytes | None = None
    ) -> Any:
        return SimpleNamespace(
            partition=lambda: index,
            offset=lambda: offset,
            error=lambda: error,
            key=lambda: key,
            value=lambda: value,
        )

    def consume(self, _count: int, _timeout: float) -> list[Any]:
        return list(islice(self._rest, 2))

    def close(self) -> None:
        self.is_closed = True


def test_all_partitions_are_read_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    late, soon = encode_added(record(1, 9_000)), encode_added(record(2, 3_000))
    consumer = FakeConsumer({0: [late], 1: [], 2: [soon, encode_added(record(3, 5_000))]})
    monkeypatch.setattr(clients, "consumer", lambda *_: consumer)
    found = reading.read_store(ADDRESS, lambda _: True)
    assert [each.id.offset for each in found.messages] == [2, 3, 1]
    assert (found.pending_count, found.complete_before_ms) == (3, None)
    assert consumer.is_closed


def test_topics_are_known_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [SimpleNamespace(topic_id=TOPIC_ID, name="reminders")]
    broker = FakeBroker({ApiKey.METADATA: lambda _: SimpleNamespace(topics=topics)})
    monkeypatch.setattr(broker_requests, "connected", broker.connected)
    assert reading.topic_names(ADDRESS) == {TOPIC_ID: "reminders"}


def test_those_that_were_pushed_out_by_delivered_ones_are_read_in_another_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = [encode_added(record(number, 9_000 + number)) for number in range(4)]
    gone = [encode_added(record(number, 100 + number)) for number in range(4, 8)]
    settled = encode_settled([(100 + number, number) for number in range(4, 8)])
    monkeypatch.setattr(clients, "consumer", lambda *_: FakeConsumer({0: [*waiting, *gone, settled]}))
    few = partial(reading.read_store, kept_max=3)
    monkeypatch.setattr(reading, "read_store", few)
    assert few(ADDRESS, lambda _: True).messages == []
    found = reading.read_first(ADDRESS, lambda _: True, 2)
    assert [each.due_ms for each in found.messages] == [9_000, 9_001]
    assert len(reading.read_first(ADDRESS, lambda _: True, 100).messages) == 4


def test_more_than_fit_at_one_moment_end_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [encode_added(record(number, 9_000)) for number in range(9)]
    monkeypatch.setattr(clients, "consumer", lambda *_: FakeConsumer({0: records}))
    monkeypatch.setattr(reading, "read_store", partial(reading.read_store, kept_max=3))
    found = reading.read_first(ADDRESS, lambda _: True, 5)
    assert (found.messages, found.complete_before_ms) == ([], 9_000)
