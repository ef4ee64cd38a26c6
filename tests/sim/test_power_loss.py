"""The power goes at a moment that the seed chooses: with `flush.messages=1` nothing acknowledged is lost
(F5).

Producers append through a leading partition, with the flusher of a real broker and a disk that forgets, tears
and reorders what was not flushed. What a producer was told is compared with what is there after recovery.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.upkeep import Flusher
from millrace.log.config import LogConfig
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of, read_values

SEEDS = 60
BATCHES = 150


class Producer:
    """One idempotent producer; remembers which of its values were acknowledged, and at which offset."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.acknowledged: dict[int, bytes] = {}
        self._sequence = 0

    async def run(self, partition: Partition, chance: random.Random) -> None:
        while True:
            first, count = self._sequence, chance.randrange(1, 4)
            values = [b"%d-%d" % (self.producer_id, number) for number in range(first, first + count)]
            batch = batch_of(*values, producer_id=self.producer_id, sequence=self._sequence)
            appended = partition.append(batch, NOW_MS)
            self._sequence += len(values)
            if not partition.is_acknowledged(appended):
                done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                partition.waiting_produces.add(appended.last_offset + 1, done.set_result)
                assert await done
            for number, value in enumerate(values):
                self.acknowledged[appended.base_offset + number] = value
            await asyncio.sleep(0)


async def produce_until_the_power_goes(partition: Partition, chance: random.Random) -> list[Producer]:
    producers = [Producer(number) for number in range(3)]
    tasks = [asyncio.ensure_future(producer.run(partition, chance)) for producer in producers]
    wanted = chance.randrange(1, BATCHES)
    while sum(len(producer.acknowledged) for producer in producers) < wanted:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return producers


def all_acknowledged(producers: list[Producer]) -> dict[int, bytes]:
    return {offset: value for producer in producers for offset, value in producer.acknowledged.items()}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_with_the_power(seed: int) -> None:
    chance = random.Random(seed)
    volume = SimVolume(chance)
    segment_bytes = chance.choice([600, 2_000, 1 << 20])
    config = LogConfig(flush_messages=1, segment_bytes=segment_bytes, index_interval_bytes=100)
    disk = Disk(volume, "/data", config)
    flusher = Flusher()
    partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), flusher.wanted)
    partition.lead(1, 0)
    producers = disk.run(produce_until_the_power_goes(partition, chance))
    disk.abandon()
    volume.crash(lose_everything=chance.random() < 0.5)
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    found = read_values(log)
    disk.dispose()

    by_offset = dict(found)
    acknowledged = all_acknowledged(producers)
    assert acknowledged, f"seed {seed} acknowledged nothing: the test shows nothing"
    assert acknowledged.items() <= by_offset.items()
    values = [value for _, value in found]
    assert len(values) == len(set(values)), "a record is there twice"
    for producer in producers:
        mark = b"%d-" % producer.producer_id
        numbers = [int(value.split(b"-")[1]) for value in values if value.startswith(mark)]
        assert numbers == list(range(len(numbers))), "a producer's records are out of order or have a gap"


def test_without_the_flush_the_same_check_finds_a_loss() -> None:
    """A check that cannot fail proves nothing: leave the flush out, and records are missing."""
    losses = 0
    for seed in range(20):
        chance = random.Random(seed)
        volume = SimVolume(chance)
        disk = Disk(volume, "/data", LogConfig())
        partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), lambda _: None)
        partition.lead(1, 0)
        producers = disk.run(produce_until_the_power_goes(partition, chance))
        disk.abandon()
        volume.crash()
        disk.open()
        log = disk.log()
        log.high_watermark = log.log_end_offset
        found = dict(read_values(log))
        disk.dispose()
        losses += not all_acknowledged(producers).items() <= found.items()
    assert losses == 20
