"""The end of every run: it heals everything, lets clients come to their end, reads everything, and notes what
each broker has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.metadata.fold import image_of
from millrace.metadata.image import Image
from millrace.sim.clients.client import ErrorAnswer
from millrace.sim.clients.consumer import Consumer, read_everything
from millrace.sim.clients.offsets import NONE_COMMITTED, fetch_offsets
from millrace.sim.clients.reading import EARLIEST, LATEST, list_offset
from millrace.sim.cluster import TooLate
from millrace.sim.history import AskedInVain, ReplicaRead, ReplicasWanted
from millrace.sim.run import END_S, ORDERS, PARTITIONS, TRANSACTION_TIMEOUT_MS, Run
from millrace.sim.volume import SimVolume
from millrace.wire.batch_header import BatchHeader, read_header
from millrace.wire.records import split_batches

COPIES_S: Final = 20
"""How long followers get to catch up and to hear what is committed."""
ANSWERS_MAX: Final = 200
"""How many answers a follower may get in a second that brings nothing. An idle follower asks a few times."""


class Ending:
    """Ends one run; `finish` does all of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cluster = run.cluster

    async def finish(self) -> None:
        self._cluster.note("heal everything")
        await self._run.heal()
        await self._run.end(*self._run.producers, *self._run.transactional)
        await self._until_stable()
        await self._until_all_is_read()
        for ending in self._run.endings:
            await ending()
        await self._run.end(*self._run.copiers, *self._run.consumers, *self._run.members)
        await self._until_stable()
        for topic, partitions in self._run.topics.items():
            for partition in partitions:
                for committed_only in (False, True):
                    await self._read_partition(topic, partition, committed_only=committed_only)
        if len(self._run.nodes) > 1:
            await self._read_copies()

    async def _read_partition(self, topic: str, partition: int, *, committed_only: bool) -> None:
        work = read_everything(self._run.admin, topic, partition, committed_only=committed_only)
        try:
            async with asyncio.timeout(END_S):
                await self._run.by_admin(work)
        except TimeoutError:
            # The reader asks again and again for records that are damaged and never go into quarantine.
            raise TooLate(f"{topic}-{partition} cannot be read in {END_S:g} s") from None

    async def _read_copies(self) -> None:
        """Let followers hear what is committed, then note what each broker has, and should have."""
        await self._until_in_sync()
        for _ in range(COPIES_S):
            await self._watched_second()
        image = image_of(await self._cluster.store.load())
        for topic, partitions in self._run.topics.items():
            for partition in partitions:
                state = image.partition(topic, partition)
                assert state is not None, topic
                self._cluster.history.add(
                    ReplicasWanted(
                        at=int(self._cluster.loop.time() * 1000),
                        topic=topic,
                        partition=partition,
                        node_ids=tuple(state.replicas),
                    )
                )
        for node in self._run.nodes:
            assert node.broker is not None
            for place, log in node.broker.directories.logs.items():
                if log.config.cleanup_compact:
                    # Each broker compacts when it likes.
                    continue
                batches = [
                    (header.base_offset, header.crc)
                    for segment in log.segments
                    for header in _headers(node.volume, segment.file.path)
                ]
                self._cluster.history.add(
                    ReplicaRead(
                        at=int(self._cluster.loop.time() * 1000),
                        node_id=node.node_id,
                        topic=place.topic,
                        partition=place.partition,
                        log_start=log.log_start_offset,
                        high_watermark=log.high_watermark,
                        batches=tuple(batches),
                    )
                )

    async def _until_in_sync(self) -> None:
        """Wait until every replica is where it should be, and in sync."""
        deadline = self._cluster.loop.time() + END_S
        while lagging := self._out_of_sync(image_of(await self._cluster.store.load())):
            if self._cluster.loop.time() > deadline:
                raise TooLate(f"{lagging} is not in sync after {END_S:g} s")
            if await self._watched_second():
                # Ten minutes would not make it better, and every simulated second takes long like this.
                return

    async def _watched_second(self) -> bool:
        """Let a second pass; return whether a follower has spent it with answers that changed nothing."""
        before = self._fetches()
        await asyncio.sleep(1.0)
        is_spinning = False
        for node_id, (answers, logs) in self._fetches().items():
            answers_before, logs_before = before.get(node_id, (answers, logs))
            if answers - answers_before > ANSWERS_MAX and logs == logs_before:
                is_spinning = True
                self._cluster.history.add(
                    AskedInVain(
                        at=int(self._cluster.loop.time() * 1000),
                        node_id=node_id,
                        answers=answers - answers_before,
                    )
                )
        return is_spinning

    def _fetches(self) -> dict[int, tuple[int, list[tuple[int, int, int]]]]:
        """How many answers each broker has got as a follower, and where its logs start and end."""
        found = {}
        for node in self._run.nodes:
            running = None if node.broker is None else node.broker.running
            neighbours = None if running is None else running.cluster.neighbours
            if node.broker is not None and neighbours is not None:
                logs = [
                    (log.log_start_offset, log.high_watermark, log.log_end_offset)
                    for log in node.broker.directories.logs.values()
                ]
                answers = sum(fetcher.answers_count for fetcher in neighbours.replication.fetchers.fetchers)
                found[node.node_id] = (answers, logs)
        return found

    def _out_of_sync(self, image: Image) -> str | None:
        for topic, partitions in self._run.topics.items():
            for partition in partitions:
                state = image.partition(topic, partition)
                assert state is not None, topic
                if state.adding or state.removing or sorted(state.isr) != sorted(state.replicas):
                    return f"{topic}-{partition}"
        return None

    async def _until_stable(self) -> None:
        """Wait until no transaction is open any more, or should be; the checkers judge what is found then."""
        deadline = self._cluster.loop.time() + 4 * TRANSACTION_TIMEOUT_MS / 1000
        while not await self._is_stable():
            await asyncio.sleep(0.5)
            if self._cluster.loop.time() > deadline:
                return

    async def _is_stable(self) -> bool:
        for topic, partitions in self._run.topics.items():
            for partition in partitions:
                stable = await self._end_of(topic, partition, committed_only=True)
                if stable < await self._end_of(topic, partition, committed_only=False):
                    return False
        return True

    async def _last_to_read(self, topic: str, partition: int) -> int:
        """What a group has to have committed in the end: nothing, if retention left it nothing to read."""
        end = await self._end_of(topic, partition, committed_only=True)
        start = await self._end_of(topic, partition, committed_only=True, which=EARLIEST)
        return end if start < end else NONE_COMMITTED

    async def _end_of(self, topic: str, partition: int, *, committed_only: bool, which: int = LATEST) -> int:
        deadline = self._cluster.loop.time() + END_S
        while self._cluster.loop.time() < deadline:
            work = list_offset(self._run.admin, topic, partition, which, committed_only=committed_only)
            try:
                return int(await self._run.by_admin(work))
            except (ConnectionFailed, ErrorAnswer):
                self._run.admin.forget_leader(topic)
                await asyncio.sleep(0.2)
        raise TooLate(f"{topic}-{partition} does not tell where it ends")

    async def _until_all_is_read(self) -> None:
        for copier in self._run.copiers:
            copier.is_idle = False
        await self._cluster.until(
            lambda: all(copier.is_idle for copier in self._run.copiers),
            deadline_s=END_S,
            what="the end of the copying",
        )
        await self._until_stable()
        for consumer in self._run.consumers:
            await self._until_at_the_end(consumer)
        for group in dict.fromkeys(member.group for member in self._run.members):
            await self._until_group_is_done(group)

    async def _until_at_the_end(self, consumer: Consumer) -> None:
        ends = {
            partition: await self._end_of(consumer.topic, partition, committed_only=consumer.committed_only)
            for partition in consumer.positions
        }
        await self._cluster.until(
            lambda: all(consumer.positions[partition] >= end for partition, end in ends.items()),
            deadline_s=END_S,
            what=f"{consumer.client.name} at the end",
        )

    async def _until_group_is_done(self, group: str) -> None:
        deadline = self._cluster.loop.time() + END_S
        while self._cluster.loop.time() < deadline:
            try:
                found = await self._run.by_admin(fetch_offsets(self._run.admin, group, ORDERS, PARTITIONS))
            except (ConnectionFailed, ErrorAnswer):
                found = {}
            # The ends are asked for each time: retention may take what is left while the group waits.
            ends = {partition: await self._last_to_read(ORDERS, partition) for partition in PARTITIONS}
            if found and all(found[partition] >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(1.0)
        raise TooLate(f"the group {group} has not read everything in {END_S:g} s")


def _headers(volume: SimVolume, path: str) -> Iterator[BatchHeader]:
    inode = volume.names.get(path)
    if inode is not None:
        for batch in split_batches(memoryview(bytes(inode.content))):
            yield read_header(batch)
