"""A broker's part in a cluster: joins when it can serve, stops leading when it cannot be sure of its place,
hands over before it stops. Joins the session, the controller and the rest; the rules are the metadata's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from millrace.broker.config.config import BrokerConfig
from millrace.broker.surroundings import Surroundings
from millrace.core.background import Background
from millrace.metadata.controller_task import ControllerSettings, ControllerTask
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import BrokerState
from millrace.metadata.service import Metadata
from millrace.metadata.session import BrokerSession, DiskState, SessionSettings
from millrace.metadata.store import Store

log = logging.getLogger(__name__)

LINGER_S = 0.15
"""After the hand-over: all brokers know the new leaders by then, and most clients have asked for them."""
HAND_OVER_S_MAX = 10.0
"""A store that does not answer must not keep a broker from stopping."""


class Membership:
    def __init__(
        self,
        metadata: Metadata,
        store: Store,
        broker: BrokerState,
        *,
        config: Callable[[], BrokerConfig],
        surroundings: Surroundings,
        is_clean: bool,
        disks: DiskState | None = None,
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._broker = replace(
            broker, rack=broker.rack or surroundings.host_name or None, boot_id=surroundings.boot_id
        )
        self.on_fence: list[Callable[[bool], None]] = []
        """Called with True when this broker must lead nothing any more, whatever its image says, and with
        False when the image counts again."""
        self._session = BrokerSession(
            metadata,
            store,
            self._broker,
            settings=SessionSettings(
                timeout_ms=config().integer("broker.session.timeout.ms"),
                heartbeat_ms=config().integer("broker.heartbeat.interval.ms"),
            ),
            is_clean=is_clean,
            chance=surroundings.chance,
            on_change=self._changed,
            disks=disks,
        )
        self._controller = ControllerTask(
            metadata,
            node_id=broker.node_id,
            incarnation=broker.incarnation,
            settings=self._controller_settings,
        )
        self._ruling: asyncio.Task[None] | None = None

    @property
    def is_fenced(self) -> bool:
        return self._session.is_fenced

    def check_time(self) -> None:
        """Stop leading if the lease may be over, before a request is handled as if it were not."""
        self._session.check_time()

    async def prepare(self) -> None:
        """Before the replicas are opened: nothing rests on this broker's last run."""
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
        if not self._config().boolean("controlled.shutdown.enable"):
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

    def _changed(self, is_fenced: bool) -> None:
        for callback in self.on_fence:
            callback(is_fenced)

    def _controller_settings(self) -> ControllerSettings:
        config = self._config()
        return ControllerSettings(
            is_rebalance_enabled=config.boolean("auto.leader.rebalance.enable"),
            rebalance_interval_ms=config.integer("leader.imbalance.check.interval.seconds") * 1000,
            imbalance_percent=config.integer("leader.imbalance.per.broker.percentage"),
            is_filling_enabled=config.boolean("auto.rebalance.new.brokers"),
            filling_partitions_max=config.integer("auto.rebalance.partitions.max"),
        )
