"""Connections to the other brokers: requests out, answers in, and quick notice of a process that is gone.

A refused connection is the word of the peer's own machine that nobody listens there any more. If this broker
has connected to that very process before, the peer is reported dead at once, and its lease ends before its
time; a machine that merely falls silent is left to its lease. A wrong report costs the peer a new
registration, never a record.

A refusal can lie: an advertised address may be wrong, or a firewall may refuse in the peer's place. So it
proves nothing of a peer that only connected to this broker, which is why this broker connects once to each
that does; and nothing of a peer that was reported dead and came back as the same process.

Where the listener between brokers asks for it, connections speak TLS and begin with a login. Probes do
neither: they ask whether somebody listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millrace.client.async_connection import AsyncConnection, connect
from millrace.client.errors import ClientError, ConnectionFailed, NobodyListens
from millrace.client.opening import log_in
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.core.background import Failures, Tasks
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.metadata.image import BrokerState, Image

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 2.0
CALL_TIMEOUT_S: Final = 10.0
PROBE_AGAIN_S: Final = 0.05
PROBES_MAX: Final = 40
"""A process that dies may keep its port open for some moments, while the system tears it down."""
KNOCKS_MAX: Final = 10
"""Each after twice as long a pause: one that has just started may not be listening yet."""
DOUBTS_MAX: Final = 3
"""After so many probes that found its port open, nobody waits any more for the news that it is gone."""


class Lane(Enum):
    """Which of the connections to a peer a question goes over: answers come in the order of the questions, so
    what may wait for long must not stand before what is quick."""

    QUICK = "quick"
    MARKERS = "markers"
    APPENDS = "appends"
    SHARE_STATE = "share state"


class PeerUnreachable(MillraceError):
    def __init__(self, node_id: int, reason: str) -> None:
        super().__init__(f"broker {node_id} cannot be reached: {reason}")
        self.node_id = node_id


class PeerConnection(AsyncConnection):
    """One connection to a peer. Answers come in the order of the requests."""

    def __init__(self, node_id: NodeId, incarnation: str, address: str, client_id: str) -> None:
        super().__init__(address, client_id)
        self.node_id = node_id
        self.incarnation = incarnation

    async def call(self, api_key: int, version: int, request: Any) -> Any:
        """The answer to a request; raises PeerUnreachable when there is none in time."""
        try:
            return await self.answer_of(self.ask(api_key, version, request), CALL_TIMEOUT_S)
        except ConnectionFailed as error:
            raise PeerUnreachable(self.node_id, str(error)) from None


class Peers:
    """The way to every other broker of the image."""

    def __init__(
        self,
        image: Callable[[], Image],
        *,
        node_id: NodeId,
        listener: str | None,
        declare_dead: Callable[[NodeId, str], Awaitable[None]],
        security: Callable[[], SecurityOptions] = lambda: PLAINTEXT,
        failures: Failures | None = None,
    ) -> None:
        self._image = image
        self._node_id = node_id
        # As `listeners` counts names.
        self._listener = None if listener is None else listener.upper()
        self._declare_dead = declare_dead
        self._security = security
        self._refusals: dict[NodeId, str] = {}
        """Why a peer could not be talked to, though it listens: told once, however often it is tried."""
        self._client_id = f"broker-{node_id}"
        self._reached: dict[NodeId, str] = {}
        """The process behind a node id that this broker has connected to."""
        self._knocking: dict[NodeId, str] = {}
        self._reported: dict[NodeId, tuple[str, int]] = {}
        """The process that this broker reported dead, and the epoch of the registration that it had."""
        self._shared: dict[tuple[NodeId, Lane], PeerConnection] = {}
        self._opening: dict[tuple[NodeId, Lane], asyncio.Task[PeerConnection]] = {}
        self._tasks = Tasks(failures)
        self._probing: dict[NodeId, str] = {}
        self._doubted: dict[NodeId, None] = {}
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True
        self._tasks.cancel()
        for connection in list(self._shared.values()):
            connection.abort()
        self._shared.clear()

    # Talking.

    async def open(self, node_id: NodeId) -> PeerConnection:
        """A new connection; raises PeerUnreachable."""
        broker = self._image().brokers.get(node_id)
        if broker is None:
            raise PeerUnreachable(node_id, "it is not registered")
        try:
            security = self._security()
            if security is PLAINTEXT:
                connection = await self._connect(broker)
            else:
                connection = await self._connect_securely(broker, security)
        except ConnectionFailed as error:
            if isinstance(error, NobodyListens):
                self.suspect(node_id)
            raise PeerUnreachable(node_id, str(error)) from None
        except ClientError as error:
            # It listens, and the two do not come together: nothing that passes by itself.
            if self._refusals.get(node_id) != str(error):
                self._refusals[node_id] = str(error)
                log.warning("broker %d cannot be talked to: %s", node_id, error)
            raise PeerUnreachable(node_id, str(error)) from None
        self._refusals.pop(node_id, None)
        self._reached[node_id] = broker.incarnation
        return connection

    async def call(
        self, node_id: NodeId, api_key: int, version: int, request: Any, *, lane: Lane = Lane.QUICK
    ) -> Any:
        """Ask a peer over a connection that all who ask in this lane share; raises PeerUnreachable."""
        key = (node_id, lane)
        connection = self._shared.get(key)
        if connection is None or connection.is_lost:
            opening = self._opening.get(key)
            if opening is None:
                opening = self._opening[key] = self._tasks.start(
                    "connect-to-peer", self._open_shared(node_id, lane), is_awaited=True
                )
            connection = await asyncio.shield(opening)
        return await connection.call(api_key, version, request)

    async def _open_shared(self, node_id: NodeId, lane: Lane) -> PeerConnection:
        key = (node_id, lane)
        try:
            connection = await self.open(node_id)
        finally:
            self._opening.pop(key, None)
        connection.on_lost = partial(self._shared_lost, lane)
        self._shared[key] = connection
        return connection

    def _shared_lost(self, lane: Lane, connection: PeerConnection) -> None:
        key = (connection.node_id, lane)
        if self._shared.get(key) is connection:
            del self._shared[key]
        self.suspect(connection.node_id)

    async def _connect(self, broker: BrokerState, tls: ssl.SSLContext | None = None) -> PeerConnection:
        for endpoint in broker.endpoints:
            if self._listener is None or endpoint.listener == self._listener:
                return await connect(
                    lambda address: PeerConnection(
                        broker.node_id, broker.incarnation, address, self._client_id
                    ),
                    endpoint.host,
                    endpoint.port,
                    timeout_s=CONNECT_TIMEOUT_S if tls is None else CALL_TIMEOUT_S,
                    tls=tls,
                )
        raise ConnectionFailed(f"it has no listener {self._listener}")

    async def _connect_securely(self, broker: BrokerState, security: SecurityOptions) -> PeerConnection:
        # From the files as they are now: certificates are renewed while brokers run.
        tls = await asyncio.get_running_loop().run_in_executor(None, security.tls_context)
        connection = await self._connect(broker, tls)
        if not security.uses_sasl:
            return connection
        try:
            login = await connection.answers_to(log_in(connection.address, security), CALL_TIMEOUT_S)
        except BaseException:
            connection.abort()
            raise
        if login.renewed_after_s is not None:
            _ = self._tasks.start("log-in-again", connection.keep_logged_in(login, CALL_TIMEOUT_S))
        return connection

    # Noticing.

    def image_changed(self, _old: Image, new: Image) -> None:
        """Nobody waits for the answer of a process that is not in the cluster any more."""
        for connection in list(self._shared.values()):
            broker = new.brokers.get(connection.node_id)
            if broker is None or broker.incarnation != connection.incarnation:
                connection.abort()

    @property
    def is_probing(self) -> bool:
        """Whether a connection just broke, and it is not yet known whether the peer is gone."""
        # Of one that is about to stop it was to be expected, and its partitions are led by others.
        return bool(self._doubted) and any(node_id not in self._image().stopping for node_id in self._doubted)

    def met(self, node_id: NodeId) -> None:
        """The peer's present process has connected to this broker. Find out, while it surely runs, whether it
        can be connected to: only then does it mean something if it cannot any more."""
        broker = self._image().brokers.get(node_id)
        if broker is None or self._is_over or self._reached.get(node_id) == broker.incarnation:
            return
        if self._knocking.get(node_id) != broker.incarnation:
            self._knocking[node_id] = broker.incarnation
            _ = self._tasks.start("knock-at-peer", self._knock(broker))

    async def _knock(self, broker: BrokerState) -> None:
        node_id, incarnation = broker.node_id, broker.incarnation
        reason = ""
        try:
            for knock in range(KNOCKS_MAX):
                present = self._image().brokers.get(node_id)
                if present is None or present.incarnation != incarnation:
                    return
                if self._reached.get(node_id) == incarnation:
                    return
                try:
                    (await self._connect(broker)).abort()
                except ConnectionFailed as error:
                    reason = str(error)
                else:
                    self._reached[node_id] = incarnation
                    return
                await asyncio.sleep(PROBE_AGAIN_S * 2**knock)
            log.warning(
                "broker %d runs, but cannot be connected to at the address that it advertises: %s",
                node_id,
                reason,
            )
        finally:
            if self._knocking.get(node_id) == incarnation:
                del self._knocking[node_id]

    def suspect(self, node_id: NodeId) -> None:
        """A connection with the peer has ended: find out whether its process has, too."""
        broker = self._image().brokers.get(node_id)
        if broker is None or self._is_over or self._reached.get(node_id) != broker.incarnation:
            # One that was never reached may not be listening yet, or anywhere that this broker can reach.
            return
        if self._probing.get(node_id) == broker.incarnation or self._has_survived(broker):
            return
        self._probing[node_id] = broker.incarnation
        self._doubted[node_id] = None
        _ = self._tasks.start("probe-peer", self._probe(broker))

    def _has_survived(self, broker: BrokerState) -> bool:
        """Whether this very process came back after a refusal had been taken for its death: whoever refuses
        in its place does not know."""
        reported = self._reported.get(broker.node_id)
        return reported is not None and reported[0] == broker.incarnation and reported[1] < broker.epoch

    async def _probe(self, broker: BrokerState) -> None:
        try:
            for probe in range(PROBES_MAX):
                try:
                    connection = await self._connect(broker)
                except NobodyListens:
                    if self._is_present(broker):
                        log.warning("broker %d is gone: its port is closed", broker.node_id)
                        await self._declare_dead(broker.node_id, broker.incarnation)
                        self._reported[broker.node_id] = (broker.incarnation, broker.epoch)
                    return
                except ConnectionFailed:
                    return
                connection.abort()
                if probe >= DOUBTS_MAX:
                    self._doubted.pop(broker.node_id, None)
                if not self._is_present(broker):
                    return
                await asyncio.sleep(PROBE_AGAIN_S)
        except MillraceError as error:
            # The lease will end by itself.
            log.warning("broker %d could not be reported dead: %s", broker.node_id, error)
        finally:
            self._probing.pop(broker.node_id, None)
            self._doubted.pop(broker.node_id, None)

    def _is_present(self, broker: BrokerState) -> bool:
        """Whether this is still the registration that the process has: another one it made afterwards, and so
        it lived."""
        present = self._image().brokers.get(broker.node_id)
        return present is not None and present.epoch == broker.epoch
