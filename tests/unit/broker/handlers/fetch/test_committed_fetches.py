"""Fetches of committed records: what was aborted is read in a thread where it is not known yet."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millrace.log.state.transactions import EndMarker
from millrace.wire.fetch_codec import READ_COMMITTED
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.fetch.test_repeated_fetches import batch, followed

PRODUCER = 7


def test_what_was_aborted_before_the_start_is_not_read_on_the_loop(broker: Broker) -> None:
    topic = followed(broker)
    log = topic.partition.log

    async def fetch() -> None:
        records = batch(b"gone", producer_id=PRODUCER, producer_epoch=0, base_sequence=0, transactional=True)
        topic.partition.append_transactional(records, NOW_MS)
        topic.partition.append_marker(EndMarker(PRODUCER, 1, False, 0, 2), NOW_MS)
        tasks: list[asyncio.Task[None]] = []

        def start_task(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.ensure_future(work))

        consumer = topic.consumer(isolation_level=READ_COMMITTED)
        consumer.connection.start_task = start_task
        for is_known in (True, False, True):
            if not is_known:
                # As after a start.
                log.segments[0].forget_indexes()
                log.aborted_replaced()
            consumer.ask(0)
            assert len(tasks) == (0 if is_known else 1)
            if tasks:
                assert consumer.answer() is None
                await tasks.pop()
            (answered,) = consumer.decoded().responses[0].partitions
            assert [(each.producer_id, each.first_offset) for each in answered.aborted_transactions] == [
                (PRODUCER, 0)
            ]
            assert answered.records is not None

    broker.run(fetch())
