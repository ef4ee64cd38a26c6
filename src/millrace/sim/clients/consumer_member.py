"""A member of a group of the consumer protocol (KIP-848). Its heartbeats carry what it owns and bring what it
shall own; it gives a partition up before another member gets it."""

from __future__ import annotations

from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.core.override import override
from millrace.sim.clients.client import ErrorAnswer
from millrace.sim.clients.group_member import HEARTBEAT_S, GroupMember, MustJoin
from millrace.sim.clients.offsets import commit_offsets, fetch_offsets
from millrace.sim.history import Assigned
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

JOINING: Final = 0
LEAVING: Final = -1
REBALANCE_TIMEOUT_MS: Final = 20_000
NEW_MEMBER_CHANCE: Final = 0.1
"""How often a member that has to join again does so as a new one; the session of the old one runs out."""
_FENCED: Final = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class ConsumerMember(GroupMember):
    """A member that speaks the consumer protocol; `_generation` is its member epoch."""

    @override
    async def _join(self) -> None:
        self._positions = {}
        self._unsaved.clear()
        if not self._member_id or self.client.chance.random() < NEW_MEMBER_CHANCE:
            self._member_id = f"{self.client.chance.getrandbits(64):016x}"
        self._generation = JOINING
        await self._beat(subscribes=True)

    @override
    async def _heartbeat(self) -> None:
        if self.client.loop.time() - self._heard_at >= HEARTBEAT_S:
            await self._beat(subscribes=False)

    async def _beat(self, *, subscribes: bool) -> None:
        answer = await self._tell(subscribes=subscribes)
        self._heard_at = self.client.loop.time()
        while answer.assignment is not None:
            wanted = [number for each in answer.assignment.topic_partitions for number in each.partitions]
            if not await self._reconcile(wanted):
                return
            answer = await self._tell(subscribes=False)

    async def _tell(self, *, subscribes: bool) -> ConsumerGroupHeartbeatResponse:
        client = self.client
        info = client.topics.get(self.topic)
        if info is None:
            await client.refresh(self.topic)
            info = client.topics.get(self.topic)
        if info is None:
            raise ConnectionFailed("the topic is not known yet")
        owned = [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=info.topic_id, partitions=list(self._positions)
            )
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=self._generation,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.topic] if subscribes else None,
            topic_partitions=owned if self._positions else [],
        )
        answer: ConsumerGroupHeartbeatResponse = await self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if answer.error_code in _FENCED:
            self._positions = {}
            raise MustJoin
        self._check("ConsumerGroupHeartbeat", answer.error_code)
        self._generation = answer.member_epoch
        return answer

    async def _reconcile(self, wanted: list[int]) -> bool:
        """Own what is wanted; return whether the coordinator has to hear that something changed."""
        client = self.client
        self._session += 1
        given_up = [partition for partition in self._positions if partition not in wanted]
        for partition in given_up:
            del self._positions[partition]
        new = [partition for partition in wanted if partition not in self._positions]
        if new:
            committed = await fetch_offsets(client, self.group, self.topic, new)
            self._positions.update({partition: max(offset, 0) for partition, offset in committed.items()})
        client.note(
            Assigned(
                at=client.now(),
                group=self.group,
                member=self._member_id,
                generation=self._generation,
                partitions=tuple((self.topic, partition) for partition in self._positions),
            )
        )
        return bool(new or given_up)

    @override
    async def _leave(self) -> None:
        self._positions = {}
        if self._member_id and self._generation >= JOINING:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self.group, member_id=self._member_id, member_epoch=LEAVING
            )
            self._member_id = ""
            try:
                await self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            except (ConnectionFailed, ErrorAnswer):
                return

    @override
    async def _commit(self, offsets: dict[int, int]) -> None:
        try:
            await commit_offsets(
                self.client,
                self.group,
                self._member_id,
                self._generation,
                self.topic,
                offsets,
                is_epoch=True,
            )
            self._unsaved.clear()
        except ErrorAnswer as error:
            if error.code == ErrorCode.STALE_MEMBER_EPOCH:
                # The next heartbeat brings the present epoch, and the next commit takes these offsets along.
                self._heard_at = 0.0
                return
            if error.code in _FENCED:
                self._positions = {}
                raise MustJoin from None
            raise
