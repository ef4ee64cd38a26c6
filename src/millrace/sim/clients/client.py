"""What every client does: find the cluster, its leaders and coordinators, and try again when something is in
the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.client.async_connection import AsyncConnection, connect
from millrace.client.errors import ConnectionFailed, InvalidAnswer
from millrace.client.opening import ServedVersions, ask_versions
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.sim.clients.hours import WorkingHours
from millrace.sim.clock import START_MS
from millrace.sim.history import Event, History, ServedWithoutLease
from millrace.sim.loop import SimLoop
from millrace.sim.registrations import Registrations
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from millrace.wire.schema_fields import Message

REQUEST_TIMEOUT_S: Final = 10.0
METADATA_VERSION: Final = 12
FIND_COORDINATOR_VERSION: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
BACKOFF_S: Final = (0.05, 0.5)

Address = tuple[str, int]

RETRIABLE: Final = tuple(code for code in ErrorCode if code.retriable)


class ErrorAnswer(MillraceError):
    """The broker answered with an error that the caller has to deal with."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {ErrorCode(code).name}")
        self.code = ErrorCode(code)


class ClientConnection(AsyncConnection):
    """To one broker. An answer that no client can read is a finding, and no reason to try again."""

    versions: ServedVersions | None = None
    """What the broker serves, if it was asked."""

    @override
    def ask(self, api_key: int, version: int, message: Any) -> asyncio.Future[Any]:
        """In an older version if the broker knows no newer one."""
        if self.versions is not None:
            version = self.versions.newest(api_key, 0, version)
        return super().ask(api_key, version, message)

    @override
    async def answer_of(self, asked: asyncio.Future[Any], timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        try:
            return await super().answer_of(asked, timeout_s)
        except InvalidAnswer as error:
            raise AssertionError(str(error)) from error


@dataclass(slots=True)
class TopicInfo:
    """What a client knows of a topic."""

    topic_id: bytes
    leaders: dict[int, tuple[int, int]]
    """The leader and its epoch, by partition."""


class Client:
    """One program's view of the cluster. Its requests may run side by side."""

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        *,
        loop: SimLoop,
        chance: random.Random,
        history: History,
        hours: WorkingHours,
        registrations: Registrations,
        negotiates: bool = False,
    ) -> None:
        self._negotiates = negotiates
        self.name = name
        self.hours = hours
        self.loop = loop
        self.chance = chance
        self.history = history
        self.topics: dict[str, TopicInfo] = {}
        self._bootstrap = list(bootstrap)
        self._registrations = registrations
        self._nodes: dict[int, Address] = {}
        self._connections: dict[Address, ClientConnection] = {}
        self._connecting: dict[Address, asyncio.Future[ClientConnection]] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def now(self) -> int:
        return int(self.loop.time() * 1000)

    def wall_ms(self) -> int:
        """The time of day, for the timestamps of records; clients' clocks are right."""
        return START_MS + self.now()

    def note(self, event: Event) -> None:
        self.history.add(event)

    async def pause(self, least: float = BACKOFF_S[0], most: float = BACKOFF_S[1]) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))

    async def next_turn(self, pause_s: float) -> None:
        """Wait for about that long, and through the night if there is one."""
        await asyncio.sleep(self.chance.expovariate(1 / pause_s))
        if not self.hours.is_open:
            await self.hours.until_open()

    def served(self, address: Address, asked_at: int, what: str) -> None:
        """A broker answered as only a leader may, which it must not do if its lease had ended before the
        request left."""
        gone_at = self._registrations.gone_at(address[0])
        if gone_at is not None and gone_at < asked_at:
            self.note(
                ServedWithoutLease(
                    at=self.now(), host=address[0], what=what, asked_at=asked_at, gone_at=gone_at
                )
            )

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()

    # Connections.

    async def connection(self, address: Address) -> ClientConnection:
        found = self._connections.get(address)
        if found is not None and not found.is_lost:
            return found
        under_way = self._connecting.get(address)
        if under_way is None:
            under_way = self.loop.create_task(self._connect(address))
            self._connecting[address] = under_way
        return await asyncio.shield(under_way)

    async def _connect(self, address: Address) -> ClientConnection:
        try:
            return await self._connect_once(address)
        finally:
            del self._connecting[address]

    async def _connect_once(self, address: Address) -> ClientConnection:
        connection = await connect(lambda name: ClientConnection(name, self.name), *address, timeout_s=None)
        if self._negotiates:
            try:
                connection.versions = await connection.answers_to(
                    ask_versions(connection.address, "sim"), REQUEST_TIMEOUT_S
                )
            except ConnectionFailed:
                connection.abort()
                raise
        self._connections[address] = connection
        return connection

    async def ask(
        self,
        address: Address,
        api_key: int,
        version: int,
        request: Message,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        connection = await self.connection(address)
        try:
            return await connection.answer_of(connection.ask(api_key, version, request), timeout_s)
        except ConnectionFailed:
            # An answer that comes late must not be taken for the answer to something else.
            connection.abort()
            raise

    async def ask_anybody(self, api_key: int, version: int, request: Message) -> Any:
        addresses = list(self._nodes.values()) or self._bootstrap
        address = self.chance.choice(addresses)
        try:
            return await self.ask(address, api_key, version, request)
        except ConnectionFailed:
            self._nodes.clear()
            raise

    # Leaders.

    async def refresh(self, *topics: str) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
        )
        response: MetadataResponse = await self.ask_anybody(ApiKey.METADATA, METADATA_VERSION, request)
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            assert topic.name is not None
            if topic.error_code:
                self.topics.pop(topic.name, None)
                continue
            self.topics[topic.name] = TopicInfo(
                topic.topic_id,
                {each.partition_index: (each.leader_id, each.leader_epoch) for each in topic.partitions},
            )

    async def leader(self, topic: str, partition: int) -> Address:
        """Raises ConnectionFailed while the partition has no leader that can be found."""
        info = self.topics.get(topic)
        if info is None or partition not in info.leaders:
            await self.refresh(topic)
            info = self.topics.get(topic)
        node = None if info is None else info.leaders.get(partition)
        address = None if node is None else self._nodes.get(node[0])
        if address is None:
            self.forget_leader(topic)
            raise ConnectionFailed(f"{topic}-{partition} has no leader")
        return address

    def forget_leader(self, topic: str) -> None:
        self.topics.pop(topic, None)

    # Coordinators.

    async def coordinator(self, kind: int, key: str) -> Address:
        found = self._coordinators.get((kind, key))
        if found is not None:
            return found
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        response: FindCoordinatorResponse = await self.ask_anybody(
            ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, request
        )
        (coordinator,) = response.coordinators
        if coordinator.error_code:
            raise ErrorAnswer("FindCoordinator", coordinator.error_code)
        address = (coordinator.host, coordinator.port)
        self._coordinators[kind, key] = address
        return address

    def served_by_coordinator(self, kind: int, key: str, asked_at: int, what: str) -> None:
        address = self._coordinators.get((kind, key))
        if address is not None:
            self.served(address, asked_at, what)

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        kind: int,
        key: str,
        api_key: int,
        version: int,
        request: Message,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """One attempt; the caller looks at the answer's codes and calls `forget_coordinator` if they say
        so."""
        try:
            return await self.ask(await self.coordinator(kind, key), api_key, version, request, timeout_s)
        except ConnectionFailed:
            self.forget_coordinator(kind, key)
            raise
