"""DeleteRecords of partitions with followers: answered when every replica has deleted, as far as it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.broker.handlers.topics.delete_records import delete_records
from millrace.broker.network.context import RequestContext
from millrace.core.ids import NodeId
from millrace.metadata.image import BrokerState
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.unit.broker.handlers.broker import DIALLED, NODE_ID, NOW_MS, Broker, anybody

FOLLOWER, GONE = NodeId(2), NodeId(3)
INCARNATION = "one"
TOPIC = "orders"
LONG_MS = 60_000
"""More than the time that a test may take: whatever is answered did not wait for it."""

Answer = list[tuple[int, int, int]]
"""Partition, error and low watermark of each."""


@pytest.fixture
def partitions(broker: Broker) -> list[Partition]:
    """Two partitions with five records each, which a follower that lives and one that is gone have, too."""
    broker.create_topic(TOPIC, 2)
    broker.run(
        broker.metadata.register_broker(
            BrokerState(node_id=FOLLOWER, incarnation=INCARNATION, rack=None, endpoints=())
        )
    )
    found = []
    for index in range(2):
        broker.append(TOPIC, *[NOW_MS] * 5, partition=index)
        partition = broker.services.partitions.find(TOPIC, index)
        assert partition is not None
        lead(partition, leader_epoch=1)
        fetch(partition, log_start_offset=0)
        found.append(partition)
    return found


def lead(partition: Partition, leader_epoch: int) -> None:
    leadership = Leadership(
        NODE_ID, leader_epoch=leader_epoch, epoch_start_offset=5, lag_ms_max=30_000, now_ms=0
    )
    leadership.update(
        replicas=(NODE_ID, FOLLOWER, GONE), isr=(NODE_ID, FOLLOWER), partition_epoch=1, now_ms=0
    )
    partition.lead_replicas(leadership)


def fetch(partition: Partition, *, log_start_offset: int) -> None:
    """The follower has everything, and says where its log begins."""
    assert partition.replica_fetched(
        FOLLOWER, broker_epoch=1, offset=5, log_start_offset=log_start_offset, now_ms=1
    )


def ask(broker: Broker, *wanted: tuple[int, int], timeout_ms: int) -> Awaitable[Answer]:
    places = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=TOPIC, partitions=places)], timeout_ms=timeout_ms
    )

    async def answer() -> Answer:
        response = await delete_records(
            RequestContext(2, "test", DIALLED, broker.services, anybody(broker.services)), request
        )
        (topic,) = response.topics
        return [
            (result.partition_index, result.error_code, result.low_watermark) for result in topic.partitions
        ]

    return answer()


def ask_and_meanwhile(
    broker: Broker, wanted: list[tuple[int, int]], *steps: Callable[[], Awaitable[object] | None]
) -> Answer:
    """The answer, which comes with the last step and not before."""

    last = broker.services.partitions.find(TOPIC, wanted[-1][0])
    assert last is not None

    async def play() -> Answer:
        asking = asyncio.ensure_future(ask(broker, *wanted, timeout_ms=LONG_MS))
        async with asyncio.timeout(5):
            # Not only deleted here, which takes a thread: it waits.
            while not last._start_watchers:
                await asyncio.sleep(0.001)
        for step in steps:
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asking.done()
            waited_for = step()
            if waited_for is not None:
                await waited_for
        async with asyncio.timeout(5):
            return await asking

    return broker.run(play())


def test_the_answer_waits_for_the_follower(broker: Broker, partitions: list[Partition]) -> None:
    assert ask_and_meanwhile(
        broker,
        [(0, 3)],
        lambda: fetch(partitions[0], log_start_offset=2),
        lambda: fetch(partitions[0], log_start_offset=3),
    ) == [(0, 0, 3)]


def test_up_to_the_high_watermark_is_up_to_where_it_was_when_it_was_asked(
    broker: Broker, partitions: list[Partition]
) -> None:
    assert ask_and_meanwhile(broker, [(0, -1)], lambda: fetch(partitions[0], log_start_offset=5)) == [
        (0, 0, 5)
    ]


def test_all_partitions_of_a_request_are_waited_for(broker: Broker, partitions: list[Partition]) -> None:
    assert ask_and_meanwhile(
        broker,
        [(0, 3), (1, 4)],
        lambda: fetch(partitions[1], log_start_offset=4),
        lambda: fetch(partitions[0], log_start_offset=3),
    ) == [(0, 0, 3), (1, 0, 4)]


def test_who_does_not_hear_of_it_in_time_is_told_and_the_records_are_gone_here(
    broker: Broker, partitions: list[Partition]
) -> None:
    fetch(partitions[1], log_start_offset=4)
    answer = broker.run(ask(broker, (0, 3), (1, 4), timeout_ms=1))
    assert answer == [(0, ErrorCode.REQUEST_TIMED_OUT, 0), (1, 0, 4)]
    assert partitions[0].log.log_start_offset == 3
    # A client that allows no time gets an answer, too.
    assert broker.run(ask(broker, (0, 3), timeout_ms=0)) == [(0, ErrorCode.REQUEST_TIMED_OUT, 0)]


def test_a_follower_that_goes_is_not_waited_for(broker: Broker, partitions: list[Partition]) -> None:
    brokers = broker.metadata.image.brokers
    assert FOLLOWER in brokers
    assert GONE not in brokers

    def leave() -> Awaitable[object]:
        return broker.metadata.unregister_broker(FOLLOWER, INCARNATION)

    assert ask_and_meanwhile(broker, [(0, 3)], leave) == [(0, 0, 3)]


def test_a_leader_that_is_replaced_meanwhile_says_so(broker: Broker, partitions: list[Partition]) -> None:
    answer = ask_and_meanwhile(broker, [(0, 3)], lambda: partitions[0].follow(FOLLOWER, 2))
    assert answer == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_leader_of_a_new_term_waits_until_the_follower_has_spoken_in_it(
    broker: Broker, partitions: list[Partition]
) -> None:
    assert ask_and_meanwhile(
        broker,
        [(0, 3)],
        lambda: lead(partitions[0], leader_epoch=2),
        lambda: fetch(partitions[0], log_start_offset=3),
    ) == [(0, 0, 3)]


def test_nobody_is_watched_for_an_answer_that_was_given(broker: Broker, partitions: list[Partition]) -> None:
    broker.run(ask(broker, (0, 3), timeout_ms=1))
    assert not partitions[0]._start_watchers
