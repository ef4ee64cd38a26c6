"""Makes the image so on this broker: logs of new partitions, roles, settings, and the end of deleted topics'
logs.

It deletes a log only on the proof of a deletion record with the log's own topic id. A topic that is merely
missing from the image loses nothing: the store may be the one that is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicId
from millrace.metadata.config_definitions import BrokerLayers, TopicSettings, topic_settings
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import EMPTY, Image, TopicState

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""How soon to try again what failed, such as the creation of a log on a full disk."""
TOPICS_PER_TURN: Final = 20
"""After so many topics other work of the loop gets its turn."""
PARTITIONS_PER_STEP: Final = 100
"""So many logs are created before roles are looked at again: a failover must not wait for thousands."""


class LocalReplicas(Protocol):
    """What the reconciler needs of the broker's partitions. Expected failures are MillraceErrors."""

    async def start(self, topic: TopicState, partitions: Sequence[int], settings: TopicSettings) -> None:
        """Create the logs that are missing and take up the role that the state gives. May be repeated."""

    def update(self, topic: TopicState, partitions: Sequence[int]) -> None:
        """Take up roles after leaders, epochs or in-sync replicas have changed."""

    def configure(self, topic: TopicState, settings: TopicSettings) -> None:
        """Apply changed settings of a topic to all its partitions here."""

    async def release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        """Drop the logs of replicas that live on other brokers now."""

    async def delete(self, name: str, topic_id: TopicId) -> None:
        """Delete every log with exactly this topic id; it is no error if there is none."""


class Following(Protocol):
    """What the reconciler needs of the metadata."""

    @property
    def image(self) -> Image: ...
    def subscribe(self, callback: Callable[[Image, Image], None]) -> Callable[[], None]: ...
    async def confirm_deletions(self, topic_ids: Sequence[TopicId], node_id: NodeId) -> None: ...


class Reconciler:
    """Makes the image so on this broker: creates and deletes logs, takes up roles, applies settings."""

    def __init__(
        self,
        metadata: Following,
        replicas: LocalReplicas,
        *,
        node_id: NodeId,
        static: Mapping[str, str],
        on_broker_settings: Callable[[BrokerLayers], None],
    ) -> None:
        self.applied: Image = EMPTY
        """The image that this broker has made so."""
        self._roles_of: Image = EMPTY
        """The image whose roles the present replicas have taken up: `applied`, or a later one while logs are
        being created."""
        self._metadata = metadata
        self._replicas = replicas
        self._node_id = node_id
        self._static = static
        self._on_broker_settings = on_broker_settings
        self._layers = BrokerLayers(static=static)
        self._default_settings = topic_settings({}, self._layers)
        self._settings: dict[TopicId, TopicSettings] = {}
        self._failed: dict[TopicId, None] = {}
        self._unstarted: dict[TopicId, None] = {}
        """Topics that cannot be started, and of which the log says so already."""
        self._undeleted: dict[TopicId, None] = {}
        """Deleted topics whose logs are still there, and of which the log says so already."""
        self._unreleased: dict[TopicId, Sequence[int]] = {}
        """Replicas that live elsewhere, and whose logs could not be deleted here yet."""
        self._changed = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self, background: Background) -> None:
        """Make the present image so, then follow it in the background."""
        self._metadata.subscribe(lambda old, new: self._changed.set())
        await self._apply(self._metadata.image)
        # After a failure the loop looks at the image again: nobody else will say that it has changed.
        self._task = background.keep("metadata-reconcile", self._run, reset=self._changed.set)

    def close(self) -> None:
        """Stop following the image. The next start finishes what is under way."""
        if self._task is not None:
            self._task.cancel()

    async def wait_until_applied(self, revision: int) -> None:
        """Return when this broker has made the image of that revision so, or tried to."""
        if self.applied.revision >= revision:
            return
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, applied))
        await applied

    def settings_of(self, topic: TopicState) -> TopicSettings:
        """The topic's settings as they count on this broker now."""
        if not topic.configs:
            return self._default_settings
        settings = self._settings.get(topic.topic_id)
        if settings is None:
            settings = self._settings[topic.topic_id] = topic_settings(topic.configs, self._layers)
        return settings

    def load_settings(self, image: Image) -> None:
        """Take the broker's settings from an image; `settings_of` then goes by them, also before `start`."""
        layers = BrokerLayers(
            dynamic_broker=image.broker_configs.get(self._node_id, {}),
            dynamic_default=image.default_broker_config,
            static=self._static,
        )
        if layers == self._layers:
            return
        self._layers = layers
        self._default_settings = topic_settings({}, layers)
        self._settings.clear()
        self._on_broker_settings(layers)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RETRY_MS / 1000 if self._failed else None):
                    await self._changed.wait()
            except TimeoutError:
                await self._retry()
            self._changed.clear()
            await self._apply(self._metadata.image)

    async def _apply(self, image: Image) -> None:
        before = self.applied
        layers = self._layers
        self.load_settings(image)
        # Roles come before anything that takes long. Roles of the image that `_start` took up early come
        # again, for the replicas that were not there then.
        self._take_roles(before, image)
        difference = before.topics_by_id.difference(image.topics_by_id)
        for topic_id in difference.removed:
            self._settings.pop(topic_id, None)
            self._failed.pop(topic_id, None)
            self._unstarted.pop(topic_id, None)
            self._unreleased.pop(topic_id, None)
        confirmed = await self._delete_logs(image)
        if self._layers is not layers:
            # Every topic's settings may be different now, also those of topics that did not change.
            await self._configure_all(before, image)
        for place, topic in enumerate(difference.added.values()):
            await self._start(topic, range(len(topic.partitions)))
            if place % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        for topic in difference.changed.values():
            await self._change(before.topics_by_id[topic.topic_id], topic)
        self._finish(image)
        if confirmed:
            await self._confirm(confirmed)

    async def _delete_logs(self, image: Image) -> list[TopicId]:
        gone = []
        for deleted in image.deleted_topics.values():
            if self._node_id not in deleted.brokers:
                continue
            try:
                await self._replicas.delete(deleted.name, deleted.topic_id)
            except MillraceError as error:
                if deleted.topic_id not in self._undeleted:
                    log.warning("the logs of the deleted topic %s are still there: %s", deleted.name, error)
                self._failed[deleted.topic_id] = self._undeleted[deleted.topic_id] = None
                continue
            self._failed.pop(deleted.topic_id, None)
            self._undeleted.pop(deleted.topic_id, None)
            gone.append(deleted.topic_id)
        return gone

    async def _confirm(self, topic_ids: list[TopicId]) -> None:
        try:
            await self._metadata.confirm_deletions(topic_ids, self._node_id)
        except MetadataError as error:
            # The records stay in the image, so the next change brings us here again.
            log.warning("the deletion of %d topics is not confirmed yet: %s", len(topic_ids), error)

    async def _configure_all(self, before: Image, image: Image) -> None:
        for place, topic in enumerate(image.topics.values()):
            if topic.topic_id in before.topics_by_id:
                self._replicas.configure(topic, self.settings_of(topic))
            if place % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _take_roles(self, before: Image, image: Image) -> None:
        """Take up changed roles, of the replicas that are here before and after."""
        self._roles_of = image
        for topic in before.topics_by_id.difference(image.topics_by_id).changed.values():
            known = before.topics_by_id[topic.topic_id].partitions
            updated = [
                number
                for number, (old, new) in enumerate(zip(known, topic.partitions, strict=False))
                if old is not new
                and old != new
                and self._node_id in old.replicas
                and self._node_id in new.replicas
            ]
            if updated:
                self._replicas.update(topic, updated)

    async def _change(self, before: TopicState, topic: TopicState) -> None:
        if before.configs != topic.configs:
            self._settings.pop(topic.topic_id, None)
            self._replicas.configure(topic, self.settings_of(topic))
        known = len(before.partitions)
        started = list(range(known, len(topic.partitions)))
        released = []
        for number, (old, new) in enumerate(zip(before.partitions, topic.partitions, strict=False)):
            if old is new or old == new:
                continue
            was_here, is_here = self._node_id in old.replicas, self._node_id in new.replicas
            if is_here and not was_here:
                started.append(number)
            elif was_here and not is_here:
                released.append(number)
        if released:
            await self._release(topic, released)
        await self._start(topic, started)

    async def _start(self, topic: TopicState, partitions: Sequence[int]) -> None:
        here = [number for number in partitions if self._node_id in topic.partitions[number].replicas]
        if not here:
            return
        failure: MillraceError | None = None
        for first in range(0, len(here), PARTITIONS_PER_STEP):
            try:
                step = here[first : first + PARTITIONS_PER_STEP]
                await self._replicas.start(topic, step, self.settings_of(topic))
            except MillraceError as error:
                failure = error
            if self._metadata.image is not self._roles_of:
                self._take_roles(self._roles_of, self._metadata.image)
        if failure is not None:
            if topic.topic_id not in self._unstarted:
                log.error("topic %s: partitions cannot be started here: %s", topic.name, failure)
            self._failed[topic.topic_id] = self._unstarted[topic.topic_id] = None
            return
        if topic.topic_id in self._unstarted:
            del self._unstarted[topic.topic_id]
            log.info("topic %s: partitions are started now", topic.name)

    async def _release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        try:
            await self._replicas.release(topic, partitions)
        except MillraceError as error:
            if topic.topic_id not in self._unreleased:
                log.warning("topic %s: logs that moved away are still here: %s", topic.name, error)
            known = self._unreleased.get(topic.topic_id, ())
            self._unreleased[topic.topic_id] = tuple(dict.fromkeys([*known, *partitions]))
            self._failed[topic.topic_id] = None
        else:
            self._unreleased.pop(topic.topic_id, None)

    async def _retry(self) -> None:
        failed, self._failed = self._failed, {}
        for topic_id in failed:
            topic = self.applied.topics_by_id.get(topic_id)
            if topic is None:
                continue
            elsewhere = [
                number
                for number in self._unreleased.get(topic_id, ())
                if self._node_id not in topic.partitions[number].replicas
            ]
            if elsewhere:
                await self._release(topic, elsewhere)
            else:
                self._unreleased.pop(topic_id, None)
            await self._start(topic, range(len(topic.partitions)))

    def _finish(self, image: Image) -> None:
        self.applied = image
        still_waiting = []
        for revision, applied in self._waiting:
            if revision > image.revision:
                still_waiting.append((revision, applied))
            elif not applied.done():
                applied.set_result(None)
        self._waiting = still_waiting
