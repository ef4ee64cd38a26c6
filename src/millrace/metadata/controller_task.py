"""The controller: one broker at a time, under its own lease, that sees to it that partitions are led.

It only reacts: to brokers that come and go, to topics that change, and from time to time to leaders that are
not the preferred ones. The rules are in `leadership`. A broker that is not the controller any more cannot
write, because every change compares the revision at which its controller took office.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from millrace.core.ids import NodeId, TopicId, format_topic_id
from millrace.metadata import records
from millrace.metadata.errors import MetadataError
from millrace.metadata.filling import filled
from millrace.metadata.image import Image, TopicState
from millrace.metadata.leftovers import Leftover, find_leftovers
from millrace.metadata.service import Metadata

log = logging.getLogger(__name__)

RETRY_MS: Final = 200
LEFTOVER_AGE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What the controller does by itself, beside elections."""

    is_rebalance_enabled: bool
    rebalance_interval_ms: int
    imbalance_percent: int
    is_filling_enabled: bool = False
    """Whether new brokers are given their share of the replicas."""
    filling_partitions_max: int = 1


class ControllerTask:
    """Holds the controller's office while this broker has it, and applies its rules when brokers come
    and go."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        node_id: NodeId,
        incarnation: str,
        settings: Callable[[], ControllerSettings],
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._incarnation = incarnation
        self._settings = settings
        self._changed = asyncio.Event()
        self._checked: Image | None = None
        """The image up to which this broker has assigned leaders, while it is the controller."""
        self._office_revision = 0
        self._next_rebalance_s = 0.0
        self._leftovers: dict[TopicId, tuple[Leftover, float]] = {}
        """What was unfinished when this controller last looked, and since when it has been unchanged."""

    async def run(self) -> None:
        unsubscribe = self._metadata.subscribe(lambda old, new: self._changed.set())
        loop = asyncio.get_running_loop()
        self._checked = None
        self._next_rebalance_s = loop.time() + self._settings().rebalance_interval_ms / 1000
        try:
            while True:
                self._changed.clear()
                now_s = loop.time()
                is_rebalance_due = now_s >= self._next_rebalance_s
                if is_rebalance_due:
                    # Also on brokers that are not the controller: to wait for a time in the past is not to
                    # sleep at all.
                    self._next_rebalance_s = now_s + self._settings().rebalance_interval_ms / 1000
                delay_s = max(self._next_rebalance_s - now_s, 0.0)
                try:
                    await self._step(is_rebalance_due=is_rebalance_due)
                except MetadataError as error:
                    log.warning("the controller tries again in %d ms: %s", RETRY_MS, error)
                    self._checked = None
                    delay_s = RETRY_MS / 1000
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._changed.wait()
        finally:
            unsubscribe()

    async def _step(self, *, is_rebalance_due: bool) -> None:
        metadata = self._metadata
        broker = metadata.image.brokers.get(self._node_id)
        if broker is None or broker.incarnation != self._incarnation:
            self._checked = None
            return
        if metadata.image.controller_id is None and self._node_id not in metadata.image.stopping:
            await metadata.claim_controller(self._node_id, self._incarnation)
        image = metadata.image
        if image.controller_id != self._node_id:
            self._checked = None
            return
        if image.controller_revision != self._office_revision:
            log.info("this broker is the controller now", extra={"epoch": image.controller_revision})
            self._office_revision = image.controller_revision
            self._checked = None
            self._leftovers = {}
        topics = self._topics_to_check(image)
        count = await metadata.assign_leaders(topics, controller_revision=self._office_revision)
        self._checked = image
        if count:
            log.info("partitions have new leaders or in-sync replicas", extra={"partitions": count})
        if metadata.image.filling:
            await self._fill()
        if is_rebalance_due:
            await self._clear_up()
            await self._rebalance()

    def _topics_to_check(self, image: Image) -> Callable[[Image], Iterable[TopicState]] | None:
        """The topics that changed; None for all, if a change of brokers or settings may touch everything."""
        checked = self._checked
        if (
            checked is None
            or checked.brokers is not image.brokers
            or checked.stopping is not image.stopping
            or checked.offline is not image.offline
            or _default_settings_revision(checked) != _default_settings_revision(image)
        ):
            return None
        difference = checked.topics_by_id.difference(image.topics_by_id)
        changed: list[TopicId] = [*difference.added, *difference.changed]
        return lambda now: [
            topic for topic_id in changed if (topic := now.topics_by_id.get(topic_id)) is not None
        ]

    async def _fill(self) -> None:
        """Begin the next moves to new brokers. The end of a move changes the image, and leads here again."""
        settings = self._settings()
        metadata, office = self._metadata, self._office_revision
        if not settings.is_filling_enabled:
            await metadata.end_filling(list(metadata.image.filling), controller_revision=office)
            return
        count = await metadata.fill_new_brokers(
            partitions_max=settings.filling_partitions_max, controller_revision=office
        )
        if count:
            log.info("replicas move to new brokers", extra={"partitions": count})
        done = filled(metadata.image)
        if done:
            await metadata.end_filling(done, controller_revision=office)
            log.info("new brokers have their share of the replicas", extra={"brokers": done})

    async def _clear_up(self) -> None:
        """Remove partitions of creations and deletions that were cut short: broker and client may be gone.

        The waiting time is not what makes this safe, it only spares slow creations: a creation whose
        beginning was removed cannot end, and begins anew."""
        now_s = asyncio.get_running_loop().time()
        known = self._leftovers
        self._leftovers = {}
        for leftover in find_leftovers(self._metadata.image):
            since = known.get(leftover.topic_id)
            since_s = now_s if since is None or since[0] != leftover else since[1]
            if now_s - since_s < LEFTOVER_AGE_S:
                self._leftovers[leftover.topic_id] = (leftover, since_s)
            elif await self._metadata.clear_up(leftover, controller_revision=self._office_revision):
                log.info(
                    "the controller removed partitions that no topic counts",
                    extra={"topic_id": format_topic_id(leftover.topic_id), "partitions": len(leftover.keys)},
                )

    async def _rebalance(self) -> None:
        settings = self._settings()
        if not settings.is_rebalance_enabled:
            return
        count = await self._metadata.restore_preferred_leaders(
            imbalance_percent=settings.imbalance_percent, controller_revision=self._office_revision
        )
        if count:
            log.info("preferred leaders lead again", extra={"partitions": count})


def _default_settings_revision(image: Image) -> int:
    return image.config_revisions.get(records.DEFAULT_BROKER_CONFIG_KEY, 0)
