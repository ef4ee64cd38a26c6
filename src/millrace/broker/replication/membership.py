"""A broker's part in a cluster: it joins when it can serve, stops leading when it cannot be sure of its
place, and hands over before it stops. The rules are the metadata's; this module joins the session, the
controller and the rest."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from millrace.core.background import Background
from millrace.metadata.controller_task import ControllerSettings, ControllerTask
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import BrokerState
from millrace.metadata.service import Metadata
from millrace.metadata.session import BrokerSession, DiskState, SessionSettings
from millrace.metadata.store import Store

log = logging.getLogger(__name__)

LINGER_S: Final = 0.15
"""How long a broker stays after it has handed over: by then all brokers know the new leaders, and most
clients have asked for them."""
HAND_OVER_S_MAX: Final = 10.0
"""A store that does not answer must not keep a broker from stopping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """How a broker keeps its place in the cluster, rules while it is the controller, and leaves."""

    session: SessionSettings
    """They do not change while the broker runs."""
    controller: ControllerSettings
    hands_over: bool
    """Whether others take the lead before this broker stops."""


class Place(Protocol):
    """A broker's place, alone or among others. Call `prepare`, then `join` when the broker can be reached;
    `hand_over` and `leave` at the end."""

    @property
    def before_requests(self) -> Callable[[], None] | None:
        """Is called when something was received, before it is handled; None if nothing needs the call."""

    async def prepare(self) -> None: ...
    async def join(self, background: Background, bound_ports: Mapping[str, int]) -> None: ...
    async def hand_over(self) -> None: ...
    async def leave(self) -> None: ...


class Alone:
    """The place of a broker whose metadata is its own: it registers, and nobody else is there to mind."""

    before_requests: Final = None

    def __init__(self, metadata: Metadata, broker: BrokerState, disks: DiskState) -> None:
        self._metadata = metadata
        self._broker = broker
        self._disks = disks

    async def prepare(self) -> None:
        await self._metadata.register_broker(self._broker, offline=self._disks.offline_replicas())

    async def join(self, background: Background, bound_ports: Mapping[str, int]) -> None:
        """The broker has been there since `prepare`."""

    async def hand_over(self) -> None:
        """There is nobody to hand over to."""

    async def leave(self) -> None:
        """The registration stays, as the data does."""


class Membership:
    """The place of a broker of a cluster, which it holds under a lease."""

    def __init__(
        self,
        metadata: Metadata,
        store: Store,
        broker: BrokerState,
        *,
        settings: MembershipSettings,
        is_clean: bool,
        chance: random.Random,
        on_fence: Callable[[bool], None],
        disks: DiskState | None = None,
    ) -> None:
        """`on_fence` is called with True when this broker must lead nothing any more, whatever its image
        says, and with False when the image counts again."""
        self._metadata = metadata
        self._settings = settings
        self._broker = broker
        self._session = BrokerSession(
            metadata,
            store,
            broker,
            settings=settings.session,
            is_clean=is_clean,
            chance=chance,
            on_change=on_fence,
            disks=disks,
        )
        self._controller = ControllerTask(
            metadata,
            node_id=broker.node_id,
            incarnation=broker.incarnation,
            settings=lambda: self._settings.controller,
        )
        self._ruling: asyncio.Task[None] | None = None

    def reconfigure(self, settings: MembershipSettings) -> None:
        """Take over what is set now, except for the session."""
        self._settings = settings

    @property
    def is_fenced(self) -> bool:
        return self._session.is_fenced

    @property
    def before_requests(self) -> Callable[[], None]:
        """Stops leading if the lease may be over, before a request is handled as if it were not."""
        return self._session.check_time

    async def prepare(self) -> None:
        """Make sure, before the replicas are opened, that nothing rests on this broker's last run."""
        await self._session.prepare()

    async def join(self, background: Background, bound_ports: Mapping[str, int]) -> None:
        """Tell the others where this broker is reached, which is where it listens now."""
        endpoints = tuple(
            endpoint if endpoint.port else endpoint._replace(port=bound_ports[endpoint.listener])
            for endpoint in self._broker.endpoints
        )
        self._session.serve_at(replace(self._broker, endpoints=endpoints))
        await self._session.enter(background)
        self._ruling = background.keep("controller", self._controller.run)

    async def hand_over(self) -> None:
        """Let others lead what they can lead, before requests are refused here."""
        self._session.will_leave()
        if not self._settings.hands_over:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S_MAX):
                left = await self._metadata.begin_controlled_shutdown(self._broker.node_id)
        except MetadataError as error:
            log.warning("stopping without handing over: %s", error)
            return
        except TimeoutError:
            log.warning("stopping without handing over: the store does not answer")
            return
        log.info("handed over", extra={"partitions_left": left})
        # Clients that still come here are sent to the new leaders; a closed connection would say nothing.
        await asyncio.sleep(LINGER_S)

    async def leave(self) -> None:
        if self._ruling is not None:
            self._ruling.cancel()
        await self._session.leave()
