"""Batches with delayed records: what reaches the log, what reaches the store, and when the producer hears."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.queues.delayed.model import CANCEL, DELAY_MS, DELIVER_AT, DelayedRecord
from millrace.wire.compression import CODEC_NAMES, Codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.records import Header, Record, build_batch, read_records, split_batches
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.produce.test_produce import (
    PRODUCE,
    TOPIC,
    follower_has_all,
    partition_of,
    request,
    results,
    run,
    with_followers,
)
from tests.unit.broker.handlers.transactions.producers import NAME, init
from tests.unit.broker.network.client import Client, correlation_ids, frame, responses

LATER: Header = (DELAY_MS, b"5000")
DUE: Header = (DELIVER_AT, b"1000")


class Store:
    """Keeps what it is given, and says so when the test wants."""

    def __init__(self) -> None:
        self.records: list[DelayedRecord] = []
        self.waiting: list[asyncio.Future[MillraceError | None]] = []
        self.is_quick = True
        self.error: MillraceError | None = None

    def add(self, records: Sequence[DelayedRecord]) -> asyncio.Future[MillraceError | None]:
        self.records += records
        outcome: asyncio.Future[MillraceError | None] = asyncio.get_running_loop().create_future()
        if self.is_quick:
            outcome.set_result(self.error)
        else:
            self.waiting.append(outcome)
        return outcome

    def conclude(self, error: MillraceError | None = None) -> None:
        for outcome in self.waiting:
            outcome.set_result(error)
        self.waiting.clear()

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def batch(
    *headers: Header | None,
    sequence: int = -1,
    producer_id: int = 7,
    codec: Codec = Codec.NONE,
    transactional: bool = False,
    epoch: int = 0,
) -> bytes:
    records = [
        Record(index, NOW_MS, b"key", b"value-%d" % index, () if each is None else (each,))
        for index, each in enumerate(headers)
    ]
    has_producer = sequence >= 0
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id if has_producer else -1,
        producer_epoch=epoch if has_producer else -1,
        base_sequence=sequence,
        transactional=transactional,
    )


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def reminders(broker: Broker, store: Store) -> Broker:
    broker.create_topic(TOPIC, 3, {"delayed.delivery.enable": "true", "delayed.delivery.max.ms": "60000"})
    broker.services.delayed_store = store
    return broker


def log_of(broker: Broker) -> list[tuple[int, bytes | None]]:
    """Offset and value of all that readers see."""
    log = partition_of(broker).log
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    while offset < log.high_watermark:
        for stored in split_batches(memoryview(log.read(offset, 1 << 20, log.high_watermark, True).read())):
            found += [(record.offset, record.value) for record in read_records(stored)]
            offset = int.from_bytes(stored[:8], "big") + int.from_bytes(stored[23:27], "big") + 1
    return found


def ask(*records: bytes, first: int = 1, **values: Any) -> bytes:
    return b"".join(
        frame(PRODUCE, 9, request(0, records=each, **values), number)
        for number, each in enumerate(records, first)
    )


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_the_log_gets_the_rest_and_the_store_the_delayed_ones(
    reminders: Broker, store: Store, codec: Codec, acks: int
) -> None:
    async def work(client: Client) -> None:
        mixed = batch(None, LATER, DUE, (CANCEL, b"0"), codec=codec)
        client.receive(ask(mixed, batch(LATER, LATER), batch(None), acks=acks))
        assert results(9, await client.answers()) == [(0, 0, 0), (0, 0, 4), (0, 0, 6)]

    run(reminders, work)
    assert log_of(reminders) == [(0, b"value-0"), (2, b"value-2"), (6, b"value-0")]
    assert store.offsets == [1, 3, 4, 5]
    first, cancellation = store.records[:2]
    assert first == DelayedRecord(
        TOPIC, partition_of(reminders).topic_id, 0, 1, NOW_MS + 5_000, NOW_MS, b"key", b"value-1", ()
    )
    assert (cancellation.is_cancellation, cancellation.replaces) == (True, 0)
    assert partition_of(reminders).stats.messages_in == 3


def test_without_acknowledgement_both_are_stored_too(reminders: Broker, store: Store) -> None:
    async def work(client: Client) -> None:
        store.is_quick = False
        client.receive(ask(batch(None, LATER), acks=0))
        assert await client.answers() == b""
        store.conclude()
        client.receive(ask(batch(None)))
        assert results(9, await client.answers()) == [(0, 0, 2)]

    run(reminders, work)
    assert (store.offsets, len(log_of(reminders))) == ([1], 2)


def test_the_producer_hears_when_both_are_committed(reminders: Broker, store: Store) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(reminders)
        with_followers(partition, 1, 2)
        store.is_quick = False
        client.receive(ask(batch(None, LATER), batch(None)))
        assert await client.answers() == b""
        assert store.offsets == [], "the next leader may know nothing of the batch, and get it once more"
        follower_has_all(partition)
        assert await client.answers() == b""
        assert store.offsets == [1]
        store.conclude()
        written = await client.answers()
        assert correlation_ids(written) == [1, 2], "answers leave in order"
        assert results(9, written) == [(0, 0, 0), (0, 0, 2)]

    run(reminders, work)


def test_what_the_store_did_not_take_is_to_be_sent_again_and_is_then_stored_once(
    reminders: Broker, store: Store
) -> None:
    async def work(client: Client) -> None:
        store.error = MillraceError("the store is away")
        one, two = batch(None, LATER, sequence=0), batch(None, LATER, sequence=2)
        client.receive(ask(one, two))
        code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert results(9, await client.answers()) == [(0, code, -1), (0, code, -1)]
        store.error = None
        client.receive(ask(one, two, batch(None, sequence=4)))
        assert results(9, await client.answers()) == [(0, 0, 0), (0, 0, 2), (0, 0, 4)]

    run(reminders, work)
    assert [offset for offset, _ in log_of(reminders)] == [0, 2, 4]
    assert store.offsets == [1, 3, 1, 3], "the same ids again"


def test_a_record_that_came_due_before_its_batch_was_sent_again_is_not_lost(
    reminders: Broker, store: Store
) -> None:
    async def work(client: Client) -> None:
        store.error = MillraceError("the store is away")
        sent = batch(None, LATER, DUE, sequence=0)
        client.receive(ask(sent))
        await client.answers()
        store.error = None
        store.records.clear()
        reminders.services.clock = Clock(NOW_MS + 6_000)
        client.receive(ask(sent))
        assert results(9, await client.answers()) == [(0, 0, 0)]

    run(reminders, work)
    assert log_of(reminders) == [(0, b"value-0"), (2, b"value-2")]
    assert store.offsets == [1], "what is in the log already needs no store"


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def test_pipelined_batches_of_a_producer_stay_in_order(reminders: Broker, store: Store) -> None:
    async def work(client: Client) -> None:
        batches = [
            batch(*([LATER if number % 3 else None] * 2), sequence=2 * number, codec=list(Codec)[number % 5])
            for number in range(12)
        ]
        client.receive(ask(*batches))
        assert results(9, await client.answers()) == [(0, 0, 2 * number) for number in range(12)]
        client.receive(ask(batch(LATER, sequence=30)))
        ((_, code, _),) = results(9, await client.answers())
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(reminders, work)
    assert len(log_of(reminders)) == 8
    assert len(store.records) == 16, "nothing is stored of what was refused"


@pytest.mark.parametrize("header", [(DELAY_MS, b"soon"), (DELAY_MS, b"60001")])
def test_a_delay_that_cannot_be_is_refused_with_the_records_place(
    reminders: Broker, store: Store, header: Header
) -> None:
    async def work(client: Client) -> None:
        client.receive(ask(batch(None, None, header)))
        ((answer,),) = (
            topic.partition_responses
            for response in responses(PRODUCE, 9, await client.answers())
            for topic in response.responses
        )
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [2]
        assert "allow" in answer.record_errors[0].batch_index_error_message

    run(reminders, work)
    assert (store.records, partition_of(reminders).log.log_end_offset) == ([], 0)


def test_nothing_is_stored_where_nothing_may_be_appended(reminders: Broker, store: Store) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(reminders)
        partition.require_replicas(min_insync=2)
        with_followers(partition, 1)
        client.receive(ask(batch(LATER, None)))
        assert results(9, await client.answers()) == [(0, ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        partition.follow(2, 5)
        client.receive(ask(batch(LATER, None)))
        assert results(9, await client.answers()) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]

    run(reminders, work)
    assert (store.records, partition_of(reminders).log.log_end_offset) == ([], 0)


def test_a_fenced_producer_stores_nothing(reminders: Broker, store: Store) -> None:
    async def work(client: Client) -> None:
        client.receive(ask(batch(None, sequence=0, epoch=3), batch(LATER, sequence=0, epoch=2)))
        found = results(9, await client.answers())
        assert found == [(0, 0, 0), (0, ErrorCode.INVALID_PRODUCER_EPOCH, -1)]

    run(reminders, work)
    assert store.records == []


def test_a_transaction_may_not_hold_delayed_records(reminders: Broker, store: Store) -> None:
    reminders.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]), 4)
    producer_id, epoch = init(reminders)

    async def work(client: Client) -> None:
        for headers, expected in (([LATER], ErrorCode.INVALID_RECORD), ([None], ErrorCode.NONE)):
            records = batch(*headers, sequence=0, producer_id=producer_id, epoch=epoch, transactional=True)
            client.receive(frame(PRODUCE, 12, request(0, records=records, transactional_id=NAME)))
            ((_, code, _),) = results(12, await client.answers())
            assert code == expected

    run(reminders, work)
    assert store.records == []


def test_without_a_store_delayed_records_have_to_wait(reminders: Broker) -> None:
    reminders.services.delayed_store = None

    async def work(client: Client) -> None:
        client.receive(ask(batch(None, LATER), batch(None, DUE)))
        found = results(9, await client.answers())
        assert found == [(0, ErrorCode.LEADER_NOT_AVAILABLE, -1), (0, 0, 0)]

    run(reminders, work)


def test_the_setting_counts_from_the_next_batch_on_also_for_recognised_requests(
    broker: Broker, store: Store
) -> None:
    broker.create_topic(TOPIC, 3)
    broker.services.delayed_store = store

    async def work(client: Client) -> None:
        client.receive(ask(batch(LATER), batch(LATER)))
        assert results(9, await client.answers()) == [(0, 0, 0), (0, 0, 1)]
        assert store.records == [], "the header means nothing in other topics"
        partition = partition_of(broker)
        partition.log.set_config(
            type(partition.log.config)(delayed_delivery_enable=True, timestamp_log_append=True)
        )
        client.receive(ask(batch(LATER)))
        assert results(9, await client.answers()) == [(0, 0, 2)]

    run(broker, work)
    assert store.offsets == [2]
    assert len(log_of(broker)) == 2


def test_the_topic_may_be_named_by_its_id(reminders: Broker, store: Store) -> None:
    topic_id: TopicId = partition_of(reminders).topic_id

    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 13, request(0, 1, topic=topic_id, records=batch(None, LATER))))
        assert results(13, await client.answers()) == [(0, 0, 0), (1, 0, 0)]

    run(reminders, work)
    assert [(record.partition, record.offset) for record in store.records] == [(0, 1), (1, 1)]
