"""A broker's membership in the cluster: its lease, its registration under it, and when it must stop acting.

The lease counts from the moment a renewal is sent, here; for the store it counts from the moment the renewal
arrives, which is later. So the time that is certain here ends before the lease can end there, whatever the
network does, and a margin is left to stop leading in. Only durations count; no two clocks are compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.core.background import Background
from millrace.core.ids import TopicId
from millrace.metadata.committing import OPEN_MS_MAX
from millrace.metadata.errors import (
    Conflict,
    LeaseExpired,
    NodeIdInUse,
    StoreUnavailable,
    TooManyConflicts,
)
from millrace.metadata.image import BrokerState, Image
from millrace.metadata.leadership import Replica
from millrace.metadata.service import Metadata
from millrace.metadata.store import LeaseId, Store

log = logging.getLogger(__name__)

MARGIN_SHARE: Final = 0.1
"""So much of the lease's time is left for the loop to be late and for leaders to step down."""
RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 1_000
TAKEOVER_GRACE_MS: Final = 3_000
"""How long beyond a lease's time the store may take to notice that it has ended."""
PASSING: Final = (StoreUnavailable, LeaseExpired, Conflict, TooManyConflicts)
"""Errors that may pass in a moment: the store is away, or somebody else was faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a broker keeps its lease in the cluster's store."""

    timeout_ms: int
    """The time of the lease: a broker that is silent for so long is replaced."""
    heartbeat_ms: int
    """How often the lease is renewed; several attempts must fit into its time."""


class DiskState:
    """The replicas of a broker that cannot be counted on. This class has none: all disks are well."""

    def offline_replicas(self) -> Mapping[TopicId, Sequence[int]]:
        """The replicas on disks that have failed by now; they may come back."""
        return {}

    def lost_replicas(self) -> Collection[Replica]:
        """The replicas that were on disks which were gone for good at the start; they begin empty."""
        return ()


class Tenure:
    """Knows until when a lease is certain to live. It has no clock: the caller passes times of the loop."""

    def __init__(self, *, margin_share: float = MARGIN_SHARE) -> None:
        self._margin_share = margin_share
        self.certain_until_s = float("-inf")

    def renewed(self, sent_at_s: float, ttl_ms: int) -> None:
        """Note that a renewal which was sent at that time was granted. Answers may come out of order."""
        until_s = sent_at_s + ttl_ms / 1000 * (1 - self._margin_share)
        self.certain_until_s = max(self.certain_until_s, until_s)

    def end(self) -> None:
        """Note that the lease has ended, whatever was certain before."""
        self.certain_until_s = float("-inf")

    def is_certain(self, now_s: float) -> bool:
        return now_s < self.certain_until_s


class BrokerSession:
    """Constructing it starts nothing. `prepare`, then `enter` when requests can be served, `leave` at the
    end."""

    def __init__(
        self,
        metadata: Metadata,
        store: Store,
        broker: BrokerState,
        *,
        settings: SessionSettings,
        is_clean: bool,
        chance: random.Random,
        on_change: Callable[[bool], None],
        disks: DiskState | None = None,
    ) -> None:
        """`is_clean` says that the last run of this broker ended in order. `on_change` is called with True
        when the broker must stop acting for the cluster, with False when it may act again."""
        self._disks = disks or DiskState()
        self.is_fenced = True
        self.fenced_count = 0
        self._metadata = metadata
        self._store = store
        self._broker = broker
        self._settings = settings
        self._is_clean = is_clean
        self._chance = chance
        self._on_change = on_change
        self._tenure = Tenure()
        self._lease_id: LeaseId | None = None
        self._is_registered = False
        self._is_leaving = False
        self._failures_in_a_row = 0
        self._lost = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def incarnation(self) -> str:
        return self._broker.incarnation

    def serve_at(self, broker: BrokerState) -> None:
        """Set the addresses that the broker turned out to have, before `enter`."""
        assert not self._is_registered
        self._broker = broker

    async def prepare(self) -> None:
        """See that nothing rests on this broker's last run: others lead what it led, or nobody does, and
        nobody counts on what it may have lost. Raises NodeIdInUse; StoreUnavailable when the store is away
        for longer than a start waits for it."""
        deadline_s = asyncio.get_running_loop().time() + OPEN_MS_MAX / 1000
        delay_ms = RETRY_MS
        while True:
            try:
                await self._withdraw_last_run()
                return
            except PASSING as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                log.warning(
                    "the broker cannot end its last run, and tries again in %d ms: %s", delay_ms, error
                )
            await asyncio.sleep(delay_ms * self._chance.uniform(0.5, 1.0) / 1000)
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _withdraw_last_run(self) -> None:
        await self._replace_predecessor()
        member = self._metadata.image.members.get(self._broker.node_id)
        is_empty = member is not None and not _share(member.directory_ids, self._broker.directory_ids)
        # Without a restart of the machine the page cache kept what the process had written.
        is_same_boot = member is not None and member.boot_id == self._broker.boot_id != ""
        is_trusted = not is_empty and (self._is_clean or is_same_boot)
        changed = await self._metadata.withdraw(
            self._broker.node_id,
            is_trusted=is_trusted,
            is_empty=is_empty,
            unreachable=self._unreachable(),
            lost=self._disks.lost_replicas(),
        )
        if changed:
            log.info(
                "replicas of the last run are out of sync until they have caught up",
                extra={"partitions": changed, "is_trusted": is_trusted, "is_empty": is_empty},
            )

    async def enter(self, background: Background) -> None:
        """Register, and keep the registration alive in the background."""
        self._metadata.subscribe(self._image_changed)
        await self._register_again()
        self._task = background.keep(
            "broker-session",
            self._run,
            fatal=(NodeIdInUse,),
            give_up=lambda error: background.cannot_go_on("broker-session", error),
        )

    def will_leave(self) -> None:
        """Say that the broker is about to leave. Others may notice its closed ports and end its lease before
        it does so itself: then it must not register again."""
        self._is_leaving = True

    async def leave(self) -> None:
        """End the registration at once, so that nobody waits for the lease to expire."""
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._is_registered = False
        if not self.is_fenced:
            self.is_fenced = True
            self._on_change(True)
        if self._lease_id is not None:
            try:
                await self._store.revoke_lease(self._lease_id)
            except StoreUnavailable as error:
                log.warning("the lease is left to expire: %s", error)

    # Renewing.

    async def _run(self) -> None:
        while True:
            if await self._renew():
                delay_ms = self._settings.heartbeat_ms
            else:
                delay_ms = min(RETRY_MS, self._settings.heartbeat_ms)
            if self._lost.is_set() or await self._is_lost_within(delay_ms):
                self._is_registered = False
                self._tenure.end()
                self._fence("the registration is gone")
                if self._is_leaving:
                    return
                await self._register_again()

    async def _renew(self) -> bool:
        """Renew the lease; returns whether it is certain for a while again."""
        assert self._lease_id is not None
        try:
            if self.is_fenced:
                # Renewals may arrive while no answer comes back. A broker that leads nothing must not keep
                # its place by them, which would keep others from leading: so it first needs the answer to a
                # commit that changes nothing.
                await self._store.commit()
            sent_at_s = asyncio.get_running_loop().time()
            ttl_ms = await self._store.keep_alive(self._lease_id)
        except LeaseExpired:
            self._lost.set()
            return False
        except StoreUnavailable as error:
            if self._failures_in_a_row == 0:
                log.warning("the lease could not be renewed: %s", error)
            self._failures_in_a_row += 1
            return False
        self._failures_in_a_row = 0
        self._certain_from(sent_at_s, ttl_ms)
        return True

    def _certain_from(self, sent_at_s: float, ttl_ms: int) -> None:
        loop = asyncio.get_running_loop()
        # The store may grant more than was asked for; nobody else counts on more either.
        self._tenure.renewed(sent_at_s, min(ttl_ms, self._settings.timeout_ms))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._tenure.certain_until_s, self.check_time)
        if self.is_fenced and self._is_registered and self._tenure.is_certain(loop.time()):
            self._unfence()

    def check_time(self) -> None:
        """Fence the broker if its time is up. Called also before requests are handled: after the process
        stood still, the loop may look at its sockets before its timers."""
        if not self.is_fenced and not self._tenure.is_certain(asyncio.get_running_loop().time()):
            self._fence("the lease was not renewed in time")

    async def _is_lost_within(self, delay_ms: int) -> bool:
        try:
            async with asyncio.timeout(delay_ms * self._chance.uniform(0.8, 1.0) / 1000):
                await self._lost.wait()
        except TimeoutError:
            return False
        return True

    def _image_changed(self, _old: Image, new: Image) -> None:
        if self._is_registered:
            broker = new.brokers.get(self._broker.node_id)
            if broker is None or broker.lease_id != self._lease_id:
                # Somebody declared this broker dead. From here on others may lead.
                self._is_registered = False
                self._tenure.end()
                self._fence("another broker ended the lease, or it expired")
                self._lost.set()

    # Registering.

    async def _register(self) -> None:
        sent_at_s = asyncio.get_running_loop().time()
        self._lease_id = await self._store.grant_lease(self._settings.timeout_ms)
        registered = await self._metadata.register_broker(
            self._broker, lease_id=self._lease_id, offline=self._disks.offline_replicas()
        )
        self._lost.clear()
        self._is_registered = True
        self._certain_from(sent_at_s, self._settings.timeout_ms)
        log.info(
            "this broker is registered",
            extra={"node_id": registered.node_id, "broker_epoch": registered.epoch},
        )

    async def _register_again(self) -> None:
        """Register again in the same process: its logs are what they were, but others decide who leads."""
        delay_ms = RETRY_MS
        while True:
            try:
                await self._replace_predecessor()
                await self._metadata.withdraw(
                    self._broker.node_id,
                    is_trusted=True,
                    is_empty=False,
                    unreachable=self._unreachable(),
                )
                await self._register()
                return
            except PASSING as error:
                log.warning("the broker cannot register, and tries again in %d ms: %s", delay_ms, error)
                await asyncio.sleep(delay_ms * self._chance.uniform(0.5, 1.0) / 1000)
                delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    def _unreachable(self) -> set[Replica]:
        return {
            (topic_id, number)
            for topic_id, numbers in self._disks.offline_replicas().items()
            for number in numbers
        }

    async def _replace_predecessor(self) -> None:
        """End the registration of this broker's last run, which the holder of its data directory may do. The
        registration of another broker gets the time of a lease to vanish."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self._settings.timeout_ms + TAKEOVER_GRACE_MS) / 1000
        node_id = self._broker.node_id
        while (present := self._metadata.image.brokers.get(node_id)) is not None:
            if present.lease_id is None:
                return
            if _share(present.directory_ids, self._broker.directory_ids):
                await self._metadata.declare_dead(node_id, present.incarnation)
            elif loop.time() >= deadline_s:
                raise NodeIdInUse(node_id, present.incarnation)
            await asyncio.sleep(RETRY_MS / 2000)

    # Fencing.

    def _fence(self, reason: str) -> None:
        if self.is_fenced:
            return
        self.is_fenced = True
        self.fenced_count += 1
        log.warning("this broker stops leading: %s", reason, extra={"node_id": self._broker.node_id})
        self._on_change(True)

    def _unfence(self) -> None:
        self.is_fenced = False
        self._on_change(False)


def _share(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    return any(item in second for item in first)
