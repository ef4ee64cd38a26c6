"""Markers are written as often as it takes, and not more often than helps."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

from millrace.coordinator.runtime import Shard
from millrace.core.ids import TopicPartition
from millrace.log.state.transactions import EndMarker
from millrace.transactions.commands import Identity, MarkersWritten, WriteMarkers
from millrace.transactions.markers import RETRY_S, RETRY_S_MAX, MarkerSender, Written
from tests.unit.metadata.virtual_time import run_virtually

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 3)
PRODUCER = Identity(7, 1)


class Coordinator:
    """In the place of a shard: keeps what it is told."""

    def __init__(self) -> None:
        self.partition = SimpleNamespace(leader_epoch=5)
        self.is_over = False
        self.told: list[object] = []

    def submit(self, command: object) -> None:
        self.told.append(command)


class Leaders:
    """Of the transaction's partitions: the one of `orders` takes no marker until it is told to."""

    def __init__(self) -> None:
        self.is_taking = False
        self.attempts_s: dict[TopicPartition, list[float]] = {ORDERS: [], BILLS: []}

    def write(self, partition: TopicPartition, _marker: EndMarker, written: Written) -> None:
        self.attempts_s[partition].append(asyncio.get_running_loop().time())
        written(self.is_taking or partition is not ORDERS)


def begin(leaders: Leaders) -> tuple[MarkerSender, Coordinator]:
    sender, coordinator = MarkerSender(leaders.write), Coordinator()
    effect = WriteMarkers("payments", PRODUCER, True, 2, (ORDERS, BILLS))
    sender.send(cast("Shard", coordinator), effect)
    return sender, coordinator


def test_a_partition_that_takes_no_marker_is_asked_again_after_pauses_that_grow() -> None:
    """Thousands of transactions may wait for the same partition, and each would ask ten times a second."""

    async def body() -> None:
        leaders = Leaders()
        sender, coordinator = begin(leaders)
        await asyncio.sleep(60)
        times = leaders.attempts_s[ORDERS]
        pauses = [after - before for before, after in pairwise(times)]
        assert abs(pauses[0] - RETRY_S) < 0.001, "a leader that has just changed is there in a moment"
        assert pauses[:4] == sorted(pauses[:4])
        assert all(abs(pause - RETRY_S_MAX) < 0.001 for pause in pauses[5:])
        assert len(leaders.attempts_s[BILLS]) == 1
        assert coordinator.told == []
        leaders.is_taking = True
        await asyncio.sleep(RETRY_S_MAX)
        assert coordinator.told == [MarkersWritten("payments", PRODUCER)]
        assert sender.retries_count == len(times) - 1

    run_virtually(body())


def test_nobody_asks_for_a_coordinator_that_is_not_in_office_any_more() -> None:
    async def body() -> None:
        leaders = Leaders()
        _, coordinator = begin(leaders)
        await asyncio.sleep(0.01)
        coordinator.is_over = True
        leaders.is_taking = True
        await asyncio.sleep(60)
        assert len(leaders.attempts_s[ORDERS]) == 1
        assert coordinator.told == []

    run_virtually(body())
