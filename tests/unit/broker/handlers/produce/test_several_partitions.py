"""Produces to several partitions: each with its outcome, in the order of the request, in one answer."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.produce.several_partitions import VALID_ACKS
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.produce.test_produce import (
    BATCH,
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
from tests.unit.broker.network.client import Client, frame
from tests.unit.log.support import batch_of


@pytest.fixture
def orders(broker: Broker) -> Broker:
    broker.create_topic(TOPIC, 3)
    return broker


def mixed(*parts: tuple[int, bytes | None]) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records) for index, records in parts]
    return ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)]
    )


def test_good_and_bad_parts_keep_their_order_and_the_good_ones_are_appended(orders: Broker) -> None:
    async def work(client: Client) -> None:
        wanted = mixed((2, BATCH), (9, BATCH), (1, BATCH[:-1] + b"\1"), (0, None), (1, BATCH))
        client.receive(frame(PRODUCE, 9, wanted))
        assert results(9, await client.answers()) == [
            (2, ErrorCode.NONE, 0),
            (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (1, ErrorCode.CORRUPT_MESSAGE, -1),
            (0, ErrorCode.CORRUPT_MESSAGE, -1),
            (1, ErrorCode.NONE, 0),
        ]

    run(orders, work)
    assert [partition_of(orders, index).log.log_end_offset for index in range(3)] == [0, 1, 1]


def test_each_append_and_each_refusal_of_a_log_is_counted(orders: Broker) -> None:
    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, mixed((0, BATCH), (1, BATCH[:-1] + b"\1"))))
        await client.answers()

    run(orders, work)
    stats = partition_of(orders).stats
    assert (stats.produces, stats.produces_failed) == (2, 1)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_an_unknown_acks_is_refused_for_every_part_and_nothing_is_appended(orders: Broker, acks: int) -> None:
    assert acks not in VALID_ACKS

    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, request(0, 1, acks=acks)))
        code = ErrorCode.INVALID_REQUIRED_ACKS
        assert results(9, await client.answers()) == [(0, code, -1), (1, code, -1)]

    run(orders, work)
    assert partition_of(orders).log.log_end_offset == 0


def test_the_whole_answer_waits_for_the_slowest_part(orders: Broker) -> None:
    async def work(client: Client) -> None:
        with_followers(partition_of(orders, 1), 1, 2)
        client.receive(frame(PRODUCE, 9, request(0, 1, 2)))
        assert await client.answers() == b""
        follower_has_all(partition_of(orders, 1))
        assert results(9, await client.answers()) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]

    run(orders, work)


def test_batches_that_are_looked_into_off_the_loop_do_not_share_the_buffer(broker: Broker) -> None:
    broker.create_topic(TOPIC, 3, {"compression.type": "gzip"})

    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, mixed((0, BATCH), (1, BATCH[:-1] + b"\1"), (2, BATCH))))
        # The next request is read into the same buffer before the first is prepared.
        client.receive(frame(PRODUCE, 9, request(0, 1, 2, records=bytes(len(BATCH)))))
        first = results(9, await client.answers())[:3]
        assert first == [(0, 0, 0), (1, ErrorCode.CORRUPT_MESSAGE, -1), (2, 0, 0)]

    run(broker, work)


def test_a_transactional_request_adds_its_partitions_and_is_answered(orders: Broker) -> None:
    orders.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]), 4)
    producer_id, epoch = init(orders)
    records = bytes(batch_of(b"v", producer_id=producer_id, epoch=epoch, transactional=True))

    async def work(client: Client) -> None:
        wanted = request(0, 1, records=records, transactional_id=NAME)
        client.receive(frame(PRODUCE, 12, wanted))
        assert results(12, await client.answers()) == [(0, 0, 0), (1, 0, 0)]

    run(orders, work)
    assert partition_of(orders).has_open_transaction(producer_id, epoch)
    assert partition_of(orders, 1).has_open_transaction(producer_id, epoch)
    assert not partition_of(orders, 2).has_open_transaction(producer_id, epoch)


def test_a_transactional_batch_without_a_transactional_id_is_refused(orders: Broker) -> None:
    records = bytes(batch_of(b"v", producer_id=5, transactional=True))

    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, request(0, 1, records=records)))
        assert all(code != ErrorCode.NONE for _, code, _ in results(9, await client.answers()))

    run(orders, work)
    assert partition_of(orders).log.log_end_offset == 0
