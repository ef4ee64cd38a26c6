"""A client whose permissions come and go: it writes, reads and commits all the time, and notes what it was
served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.security.acls.binding import Operation, ResourceType
from millrace.sim.clients.client import GROUP, Client, ErrorAnswer
from millrace.sim.clients.reading import EARLIEST, fetch, list_offset, visible_records
from millrace.sim.history import GuestRefused, GuestServed
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch

GUARDED: Final = "guarded"
"""The guests' topic, of one partition. Nobody else has anything to do with it."""
GUESTS: Final = "guests"
"""Their group."""
WRITES: Final = (Operation.WRITE, ResourceType.TOPIC, GUARDED)
READS: Final = (Operation.READ, ResourceType.TOPIC, GUARDED)
COMMITS: Final = (Operation.READ, ResourceType.GROUP, GUESTS)
NEEDS: Final = {"write": WRITES, "read": READS, "commit": COMMITS}
"""What each of its doings needs."""
_REFUSALS: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)
PRODUCE_VERSION: Final = 11
COMMIT_VERSION: Final = 8
WAIT_MS: Final = 5_000


class Guest:
    """Does all three at the same time, until its process is ended."""

    def __init__(self, client: Client, pause_s: float) -> None:
        self.client = client
        self._pause_s = pause_s
        self._position = 0

    async def run(self) -> None:
        await asyncio.gather(
            # Readers wait for writers, so that permissions go while they wait.
            self._repeat("write", self._write, 5 * self._pause_s),
            self._repeat("read", self._read, self._pause_s),
            self._repeat("commit", self._commit, self._pause_s),
        )

    async def _repeat(self, what: str, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        client = self.client
        while True:
            await client.next_turn(pause_s)
            asked_at = client.now()
            try:
                await work()
            except ErrorAnswer as error:
                if error.code in _REFUSALS:
                    client.note(GuestRefused(at=client.now(), guest=client.name, what=what))
                self._look_again()
            except ConnectionFailed:
                self._look_again()
            else:
                client.note(GuestServed(at=client.now(), guest=client.name, what=what, asked_at=asked_at))

    def _look_again(self) -> None:
        self.client.forget_leader(GUARDED)
        self.client.forget_coordinator(GROUP, GUESTS)

    async def _write(self) -> None:
        client = self.client
        records = bytes(build_batch([Record(0, client.wall_ms(), None, client.name.encode())]))
        request = ProduceRequest(
            acks=1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(
                    name=GUARDED, partition_data=[PartitionProduceData(index=0, records=records)]
                )
            ],
        )
        address = await client.leader(GUARDED, 0)
        response = await client.ask(address, ApiKey.PRODUCE, PRODUCE_VERSION, request)
        _check("Produce", response.responses[0].partition_responses[0].error_code)

    async def _read(self) -> None:
        client = self.client
        answers = await fetch(
            client, GUARDED, {0: self._position}, committed_only=False, wait_ms=WAIT_MS, with_epoch=False
        )
        data = answers[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._position = await list_offset(client, GUARDED, 0, EARLIEST)
            return
        _check("Fetch", data.error_code)
        found = visible_records(data.records or b"", self._position, None, committed_only=False)
        self._position = found.next_offset

    async def _commit(self) -> None:
        request = OffsetCommitRequest(
            group_id=GUESTS,
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name=GUARDED,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=self._position)
                    ],
                )
            ],
        )
        response = await self.client.ask_coordinator(
            GROUP, GUESTS, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request
        )
        _check("OffsetCommit", response.topics[0].partitions[0].error_code)


def _check(what: str, code: int) -> None:
    if code:
        raise ErrorAnswer(what, code)
