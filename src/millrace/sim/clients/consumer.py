"""A consumer that reads partitions of a topic without a group, and for as long as it runs goes on from where
it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import Client, ErrorAnswer
from millrace.sim.clients.reading import EARLIEST, fetch, list_offset, visible_records
from millrace.sim.history import FinalRead, Polled
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import PartitionData

WAIT_MS: Final = 2_000


class Consumer:
    """Reads until told to stop."""

    def __init__(
        self, client: Client, topic: str, partitions: Sequence[int], *, committed_only: bool, pause_s: float
    ) -> None:
        self.client = client
        self.topic = topic
        self.committed_only = committed_only
        self.is_stopping = False
        self.positions: dict[int, int] = dict.fromkeys(partitions, 0)
        self._pause_s = pause_s
        self._sessions: dict[int, int] = dict.fromkeys(partitions, 0)

    async def run(self) -> None:
        while not self.is_stopping:
            await self.client.next_turn(self._pause_s)
            await self.poll()

    async def poll(self) -> None:
        client = self.client
        try:
            answers = await fetch(
                client, self.topic, self.positions, committed_only=self.committed_only, wait_ms=WAIT_MS
            )
            for partition, data in answers.items():
                await self._take(partition, data)
        except (ConnectionFailed, ErrorAnswer):
            client.forget_leader(self.topic)
            await client.pause()

    async def _take(self, partition: int, data: PartitionData) -> None:
        client = self.client
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._sessions[partition] += 1
            self.positions[partition] = await list_offset(client, self.topic, partition, EARLIEST)
            return
        if data.error_code == ErrorCode.CORRUPT_MESSAGE:
            # The consumer steps over what the disk has destroyed, as people do by hand.
            self._sessions[partition] += 1
            self.positions[partition] += 1
            return
        if data.error_code:
            raise ErrorAnswer("Fetch", data.error_code)
        start = self.positions[partition]
        found = visible_records(
            data.records or b"", start, data.aborted_transactions, committed_only=self.committed_only
        )
        if found.next_offset == start:
            return
        self.positions[partition] = found.next_offset
        client.note(
            Polled(
                at=client.now(),
                consumer=client.name,
                session=self._sessions[partition],
                topic=self.topic,
                partition=partition,
                committed_only=self.committed_only,
                start=start,
                records=found.records,
                next_offset=found.next_offset,
            )
        )


async def read_everything(client: Client, topic: str, partition: int, *, committed_only: bool) -> None:
    """Note what a partition holds in the end; wait until it can be read."""
    records: list[tuple[int, str]] = []
    start = -1
    position = 0
    while True:
        try:
            if start < 0:
                start = position = await list_offset(client, topic, partition, EARLIEST)
            answers = await fetch(
                client, topic, {partition: position}, committed_only=committed_only, wait_ms=0
            )
            data = answers[partition]
            if data.error_code == ErrorCode.CORRUPT_MESSAGE:
                position += 1
                continue
            if data.error_code:
                raise ErrorAnswer("Fetch", data.error_code)
        except (ConnectionFailed, ErrorAnswer):
            client.forget_leader(topic)
            await client.pause()
            continue
        found = visible_records(
            data.records or b"", position, data.aborted_transactions, committed_only=committed_only
        )
        records += found.records
        if found.next_offset == position and data.records:
            # The records are damaged, and not in quarantine yet.
            await client.pause()
            continue
        if found.next_offset == position:
            break
        position = found.next_offset
    client.note(
        FinalRead(
            at=client.now(),
            topic=topic,
            partition=partition,
            committed_only=committed_only,
            log_start=start,
            high_watermark=data.high_watermark,
            last_stable_offset=data.last_stable_offset,
            records=tuple(records),
        )
    )
