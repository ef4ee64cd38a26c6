"""A member of a classic group: it joins, shares out the partitions if it leads, reads, commits, leaves and
comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import GROUP, REQUEST_TIMEOUT_S, Client, ErrorAnswer
from millrace.sim.clients.offsets import commit_offsets, fetch_offsets
from millrace.sim.clients.reading import EARLIEST, fetch, list_offset, visible_records
from millrace.sim.history import Assigned, Polled
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from millrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from millrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from millrace.wire.schema_fields import Message

SESSION_TIMEOUT_MS: Final = 10_000
REBALANCE_TIMEOUT_MS: Final = 15_000
HEARTBEAT_S: Final = 3.0
"""How often a member that works says that it is there; at night it does so only as often as it must."""
HEARTBEATS_PER_SESSION: Final = 3
LEAVE_CHANCE: Final = 0.01
"""How likely a member leaves the group, in each turn."""
WAIT_MS: Final = 1_000
PROTOCOL: Final = "sim"
_REJOIN: Final = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
)
_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class MustJoin(Exception):
    """The member's place in the group is not what it was."""


class GroupMember:
    """Works for its group until told to stop."""

    def __init__(
        self,
        client: Client,
        group: str,
        topic: str,
        partitions: Sequence[int],
        *,
        pause_s: float,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.client = client
        self._session_timeout_ms = session_timeout_ms
        self.group = group
        self.topic = topic
        self.is_stopping = False
        self._all = list(partitions)
        self._pause_s = pause_s
        self._member_id = ""
        self._generation = -1
        self._session = 0
        self._positions: dict[int, int] = {}
        self._unsaved: dict[int, int] = {}
        """Positions that were not committed yet."""
        self._heard_at = 0.0

    async def run(self) -> None:
        client = self.client
        while not self.is_stopping:
            try:
                await self._join()
                while not self.is_stopping:
                    await asyncio.sleep(client.chance.expovariate(1 / self._pause_s))
                    if not client.hours.is_open and not await self._keep_place():
                        break
                    if client.chance.random() < LEAVE_CHANCE:
                        await self._leave()
                        await client.pause(1.0, 20.0)
                        break
                    await self._turn()
            except MustJoin:
                continue
            except (ConnectionFailed, ErrorAnswer):
                client.forget_leader(self.topic)
                await client.pause()
        await self._leave()

    # Belonging.

    async def _join(self) -> None:
        answer = await self._ask_to_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._ask_to_join()
        self._check("JoinGroup", answer.error_code)
        self._member_id = answer.member_id
        self._generation = answer.generation_id
        shares: list[SyncGroupRequestAssignment] = []
        if answer.leader == answer.member_id and not answer.skip_assignment:
            shares = self._share_out([member.member_id for member in answer.members])
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=shares,
        )
        synced: SyncGroupResponse = await self._ask(
            ApiKey.SYNC_GROUP, 5, request, REBALANCE_TIMEOUT_MS / 1000
        )
        self._check("SyncGroup", synced.error_code)
        self._heard_at = self.client.loop.time()
        await self._begin(_decode_assignment(synced.assignment))

    async def _ask_to_join(self) -> JoinGroupResponse:
        encode = schema.data_encoder(ConsumerProtocolSubscription, 0)
        metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=[self.topic]))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata)],
        )
        answer: JoinGroupResponse = await self._ask(
            ApiKey.JOIN_GROUP, 9, request, REBALANCE_TIMEOUT_MS / 1000
        )
        return answer

    def _share_out(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        encode = schema.data_encoder(ConsumerProtocolAssignment, 0)
        shares = []
        members = sorted(members)
        for at, member in enumerate(members):
            mine = [partition for partition in self._all if partition % len(members) == at]
            assignment = ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartition(topic=self.topic, partitions=mine)] if mine else []
            )
            shares.append(
                SyncGroupRequestAssignment(member_id=member, assignment=b"\0\0" + encode(assignment))
            )
        return shares

    async def _begin(self, partitions: list[int]) -> None:
        client = self.client
        self._session += 1
        client.note(
            Assigned(
                at=client.now(),
                group=self.group,
                member=self._member_id,
                generation=self._generation,
                partitions=tuple((self.topic, partition) for partition in partitions),
            )
        )
        self._positions = {}
        self._unsaved.clear()
        while partitions and not self._positions:
            try:
                committed = await fetch_offsets(client, self.group, self.topic, partitions)
                self._positions = {partition: max(offset, 0) for partition, offset in committed.items()}
            except (ConnectionFailed, ErrorAnswer):
                await client.pause()
                await self._heartbeat()

    async def _leave(self) -> None:
        member_id, self._member_id = self._member_id, ""
        self._generation = -1
        if member_id:
            request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=member_id)])
            try:
                await self._ask(ApiKey.LEAVE_GROUP, 4, request)
            except (ConnectionFailed, ErrorAnswer):
                # The group finds out by itself.
                return

    async def _heartbeat(self) -> None:
        if self.client.loop.time() - self._heard_at < HEARTBEAT_S:
            return
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self._generation, member_id=self._member_id
        )
        response: HeartbeatResponse = await self._ask(ApiKey.HEARTBEAT, 4, request)
        self._heard_at = self.client.loop.time()
        self._check("Heartbeat", response.error_code)

    async def _keep_place(self) -> bool:
        """Stay in the group through the night, or leave it and come back in the morning; return whether it is
        still a member."""
        hours = self.client.hours
        if self.client.chance.random() < hours.leave_chance:
            await self._leave()
            await hours.until_open()
            return False
        while not hours.is_open:
            await hours.until_open(at_most_s=self._session_timeout_ms / 1000 / HEARTBEATS_PER_SESSION)
            await self._heartbeat()
        return True

    # Working.

    async def _turn(self) -> None:
        await self._heartbeat()
        if not self._positions:
            await asyncio.sleep(HEARTBEAT_S)
            return
        client = self.client
        answers = await fetch(client, self.topic, self._positions, committed_only=True, wait_ms=WAIT_MS)
        moved: dict[int, int] = {}
        for partition, data in answers.items():
            start = self._positions[partition]
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._session += 1
                self._positions[partition] = await list_offset(client, self.topic, partition, EARLIEST)
                continue
            if data.error_code == ErrorCode.CORRUPT_MESSAGE:
                self._session += 1
                self._positions[partition] += 1
                continue
            if data.error_code:
                raise ErrorAnswer("Fetch", data.error_code)
            records, next_offset = visible_records(
                data.records or b"", start, data.aborted_transactions, committed_only=True
            )
            if next_offset == start:
                continue
            self._positions[partition] = moved[partition] = next_offset
            client.note(
                Polled(
                    at=client.now(),
                    consumer=f"{self.group}/{client.name}",
                    session=self._session,
                    topic=self.topic,
                    partition=partition,
                    committed_only=True,
                    start=start,
                    records=records,
                    next_offset=next_offset,
                )
            )
        self._unsaved.update(moved)
        unsaved = {
            partition: offset for partition, offset in self._unsaved.items() if partition in self._positions
        }
        if unsaved:
            try:
                await self._commit(unsaved)
            except ErrorAnswer as error:
                self._check("OffsetCommit", error.code)

    async def _commit(self, offsets: dict[int, int]) -> None:
        await commit_offsets(self.client, self.group, self._member_id, self._generation, self.topic, offsets)
        self._unsaved.clear()

    async def _ask(self, api_key: int, version: int, request: Message, wait_s: float = 0.0) -> Any:
        return await self.client.ask_coordinator(
            GROUP, self.group, api_key, version, request, REQUEST_TIMEOUT_S + wait_s
        )

    def _check(self, what: str, code: int) -> None:
        if code in _MOVED:
            self.client.forget_coordinator(GROUP, self.group)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = ""
        if code in _REJOIN:
            raise MustJoin
        if code:
            raise ErrorAnswer(what, code)


def _decode_assignment(data: bytes) -> list[int]:
    if not data:
        return []
    assignment: ConsumerProtocolAssignment = schema.data_decoder(ConsumerProtocolAssignment, 0)(data, 2)
    return [partition for topic in assignment.assigned_partitions for partition in topic.partitions]
