"""Members of a share group that go on while brokers die, and a ledger of all that they were given and told.

All members live in one event loop, so that what one was told is known to have come before what another was
given."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from millrace.client.async_connection import AsyncConnection, connect
from millrace.client.errors import ConnectionFailed
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import share_acknowledge, share_fetch
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millrace.wire.records import read_records, split_batches

ANSWER_S: Final = 15.0
"""More than a broker waits for the state to be stored."""
CONNECT_S: Final = 2.0
BEAT_S: Final = 1.0
PAUSE_S: Final = 0.1
FETCH_WAIT_MS: Final = 300
ACCEPT: Final = 1
RELEASE: Final = 2
NO_SESSION: Final = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
MOVING: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""What passes when leaders were found."""

Place = tuple[int, int]
"""Partition and offset."""


class Delivery(NamedTuple):
    at: float
    member_id: str
    number: int


class Ledger:
    """What happened to each record."""

    def __init__(self) -> None:
        self.deliveries: dict[Place, list[Delivery]] = {}
        self.accepted: dict[Place, float] = {}
        """When a member was told that its acceptance counts."""
        self.unsure: dict[Place, float] = {}
        """When an acceptance was sent that was not answered."""
        self.values: dict[Place, bytes] = {}
        self.wrong: list[str] = []
        self.errors: Counter[str] = Counter()

    def delivered(self, place: Place, delivery: Delivery, value: bytes) -> None:
        accepted_at = self.accepted.get(place)
        if accepted_at is not None:
            before = ", ".join(
                f"{each.number} to {each.member_id[-4:]} at {each.at:.2f}"
                for each in [*self.deliveries[place], delivery]
            )
            self.wrong.append(f"{place} was accepted at {accepted_at:.2f} and came again: {before}")
        self.deliveries.setdefault(place, []).append(delivery)
        if self.values.setdefault(place, value) != value:
            self.wrong.append(f"{place} holds another record than before")

    @property
    def done(self) -> int:
        return len(self.accepted)


class ShareMember:
    """One member: it accepts most records, releases a few, and forgets others until their lock ends."""

    def __init__(
        self, addresses: Mapping[int, tuple[str, int]], group: str, topic: str, ledger: Ledger, number: int
    ) -> None:
        self.member_id = str(uuid.UUID(int=number + 1))
        self._addresses = addresses
        self._group = group
        self._topic = topic
        self._ledger = ledger
        self._chance = random.Random(number)
        self._connections: dict[int, AsyncConnection] = {}
        self._sessions: dict[int, int] = {}
        """The next epoch of the session with each broker."""
        self._asked: dict[int, list[int]] = {}
        """The partitions in the session with each broker."""
        self._epoch = 0
        self._beaten_at = 0.0
        self._coordinator: int | None = None
        self._assigned: list[int] = []
        self._topic_id = b""
        self._leaders: dict[int, int] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                await self._turn()
            except ConnectionFailed as failure:
                self._ledger.errors[type(failure).__name__] += 1
                self._leaders.clear()
                self._coordinator = None
                await asyncio.sleep(PAUSE_S)
        for connection in self._connections.values():
            connection.abort()

    async def _turn(self) -> None:
        if time.monotonic() - self._beaten_at > BEAT_S:
            await self._beat()
        if not self._leaders:
            await self._find_leaders()
        by_leader: dict[int, list[int]] = {}
        for partition in self._assigned:
            by_leader.setdefault(self._leaders.get(partition, -1), []).append(partition)
        by_leader.pop(-1, None)
        if not by_leader:
            self._leaders.clear()
            await asyncio.sleep(PAUSE_S)
        for leader, partitions in by_leader.items():
            await self._fetch(leader, partitions)

    # The group.

    async def _beat(self) -> None:
        if self._coordinator is None:
            request = FindCoordinatorRequest(coordinator_keys=[self._group])
            found = (await self._ask_any(ApiKey.FIND_COORDINATOR, 4, request)).coordinators[0]
            if found.error_code:
                self._note(found.error_code)
                await asyncio.sleep(PAUSE_S)
                return
            self._coordinator = found.node_id
        topics = [self._topic] if self._epoch == 0 else None
        beat = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=topics,
        )
        answer = await self._ask(self._coordinator, ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)
        match answer.error_code:
            case ErrorCode.NONE:
                self._beaten_at = time.monotonic()
                self._epoch = answer.member_epoch
                if answer.assignment is not None:
                    self._assigned = [
                        partition
                        for topic in answer.assignment.topic_partitions
                        for partition in topic.partitions
                    ]
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID:
                self._note(answer.error_code)
                self._epoch = 0
            case code:
                self._note(code)
                self._coordinator = None
                await asyncio.sleep(PAUSE_S)

    async def _find_leaders(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
        (topic,) = (await self._ask_any(ApiKey.METADATA, 12, request)).topics
        if topic.error_code == ErrorCode.NONE:
            self._topic_id = topic.topic_id
            self._leaders = {each.partition_index: each.leader_id for each in topic.partitions}

    # Records.

    async def _fetch(self, leader: int, partitions: Sequence[int]) -> None:
        epoch = self._sessions.get(leader, 0)
        known = self._asked.get(leader, []) if epoch else []
        new = [index for index in partitions if index not in known]
        gone = [index for index in known if index not in partitions]
        request = share_fetch.ShareFetchRequest(
            group_id=self._group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=20,
            batch_size=20,
            share_acquire_mode=self._chance.randrange(2),
            topics=[
                share_fetch.FetchTopic(
                    topic_id=self._topic_id,
                    partitions=[share_fetch.FetchPartition(partition_index=index) for index in new],
                )
            ]
            if new
            else [],
            forgotten_topics_data=[share_fetch.ForgottenTopic(topic_id=self._topic_id, partitions=gone)]
            if gone
            else [],
        )
        self._asked[leader] = list(partitions)
        answer = await self._ask(leader, ApiKey.SHARE_FETCH, 2, request)
        if answer.error_code:
            await self._failed(leader, answer.error_code)
            return
        self._sessions[leader] = epoch + 1
        for topic in answer.responses:
            for found in topic.partitions:
                if found.error_code:
                    self._note(found.error_code)
                    self._leaders.clear()
                    await asyncio.sleep(PAUSE_S)
                elif found.acquired_records:
                    await self._work(leader, found)

    async def _work(self, leader: int, found: Any) -> None:
        now = time.monotonic()
        partition = found.partition_index
        values = {
            record.offset: record.value or b""
            for batch in split_batches(memoryview(found.records))
            for record in read_records(batch)
        }
        types: list[tuple[int, int]] = []
        for run in found.acquired_records:
            for offset in range(run.first_offset, run.last_offset + 1):
                place = (partition, offset)
                if offset not in values:
                    self._ledger.wrong.append(f"{place} was acquired and is not in the answer")
                    continue
                delivery = Delivery(now, self.member_id, run.delivery_count)
                self._ledger.delivered(place, delivery, values[offset])
                luck = self._chance.random()
                if luck < 0.94:
                    types.append((offset, ACCEPT))
                elif luck < 0.97:
                    types.append((offset, RELEASE))
        await asyncio.sleep(self._chance.random() * 0.02)
        if types:
            await self._acknowledge(leader, partition, types)

    async def _acknowledge(self, leader: int, partition: int, types: Sequence[tuple[int, int]]) -> None:
        epoch = self._sessions[leader]
        batches = [
            share_acknowledge.AcknowledgementBatch(
                first_offset=offset, last_offset=offset, acknowledge_types=[kind]
            )
            for offset, kind in types
        ]
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=[
                share_acknowledge.AcknowledgeTopic(
                    topic_id=self._topic_id,
                    partitions=[
                        share_acknowledge.AcknowledgePartition(
                            partition_index=partition, acknowledgement_batches=batches
                        )
                    ],
                )
            ],
        )
        accepted = [(partition, offset) for offset, kind in types if kind == ACCEPT]
        sent_at = time.monotonic()
        code = -1
        try:
            answer = await self._ask(leader, ApiKey.SHARE_ACKNOWLEDGE, 2, request)
            code = answer.error_code or answer.responses[0].partitions[0].error_code
        finally:
            told_at = time.monotonic()
            for place in accepted:
                if code == ErrorCode.NONE:
                    self._ledger.accepted[place] = told_at
                elif code != ErrorCode.INVALID_RECORD_STATE:
                    # Nobody knows whether it counts.
                    self._ledger.unsure[place] = sent_at
        if answer.error_code:
            await self._failed(leader, answer.error_code)
            return
        self._sessions[leader] = epoch + 1
        if code:
            self._note(code)
            if code != ErrorCode.INVALID_RECORD_STATE:
                self._leaders.clear()

    async def _failed(self, leader: int, code: int) -> None:
        self._note(code)
        if code in NO_SESSION:
            self._sessions.pop(leader, None)
        self._leaders.clear()
        await asyncio.sleep(PAUSE_S)

    def _note(self, code: int) -> None:
        name = ErrorCode(code).name
        self._ledger.errors[name] += 1
        is_expected = (
            code in MOVING
            or code in NO_SESSION
            or code
            in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
        )
        if not is_expected:
            self._ledger.wrong.append(f"a member was told {name}")

    # Connections.

    async def _ask_any(self, api_key: int, version: int, request: Any) -> Any:
        nodes = list(self._addresses)
        self._chance.shuffle(nodes)
        for node in nodes[:-1]:
            try:
                return await self._ask(node, api_key, version, request)
            except ConnectionFailed:
                continue
        return await self._ask(nodes[-1], api_key, version, request)

    async def _ask(self, node: int, api_key: int, version: int, request: Any) -> Any:
        connection = self._connections.get(node)
        if connection is None or connection.is_lost:
            # Sessions end with their connections.
            self._sessions.pop(node, None)
            host, port = self._addresses[node]
            connection = await connect(
                lambda address: AsyncConnection(address, "worker"), host, port, timeout_s=CONNECT_S
            )
            self._connections[node] = connection
        return await connection.answer_of(connection.ask(api_key, version, request), ANSWER_S)
