"""The face of share state to the rest of the broker: where a share partition's state lives, and its commands.

The shell that finds, creates and asks is `coordinator/coordinator.py`. This module adds a short way for
writes, of which there are as many as acknowledgements, and hears of deleted topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.coordinator.coordinator import Coordinator
from millrace.coordinator.decision import Machine
from millrace.coordinator.internal_topic import InternalTopic
from millrace.coordinator.runtime import RECORD_OVERHEAD, Answer, Outcome, Runtime, Shard
from millrace.core.background import Background
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.queues.share_partition.model import ShareKey
from millrace.queues.state.commands import DONE, StateSettings, TopicsDeleted, WriteState
from millrace.queues.state.machine import ShareStateMachine
from millrace.queues.state.pruning import Pruning
from millrace.queues.state.records import (
    BATCH_BYTES_MAX,
    VALUE_BYTES_MAX,
    ShareStateCodec,
    coordinator_key,
    update_key,
    update_value,
)
from millrace.replica.partitions import Partitions

STATE_TOPIC: Final = "__share_group_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTopic:
    """How `__share_group_state` is created. It is not compacted: an update says only what has changed."""

    partition_count: int = 50
    replication_factor: int = 3
    min_insync_replicas: int = 2
    segment_bytes: int = 104_857_600

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": str(min(self.min_insync_replicas, replicas)),
            "retention.ms": "-1",
            "segment.bytes": str(self.segment_bytes),
        }


class WriteAnswer(Protocol):
    """Whoever waits for a write."""

    def stored(self, error: MillraceError | None) -> None:
        """The write is committed, or with an error never will be for all that is known here."""


class ShareState:
    """The state of all share partitions that this broker coordinates."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        settings: StateSettings,
        topic: StateTopic,
    ) -> None:
        self.settings = settings
        self._metadata = metadata
        self.topic = InternalTopic(STATE_TOPIC, metadata, topic)
        self.runtime = Runtime(
            STATE_TOPIC, partitions, clock=clock, codec=ShareStateCodec(), new_machine=self._new_machine
        )
        self._coordinator = Coordinator(self.topic, self.runtime, ShareStateMachine)
        self._pruning = Pruning(self.runtime, settings)
        self._unsubscribe: Callable[[], None] | None = None
        self._seen: Image | None = None
        self._known: dict[ShareKey, None] = {}
        """The share partitions whose partitions exist in the image that was seen last."""

    # Life.

    def start(self, background: Background) -> None:
        """Load this broker's partitions, follow the metadata, and keep the topic short, until `stop`."""
        self._coordinator.start(background)
        self._unsubscribe = self._metadata.subscribe(self._image_changed)
        _ = background.keep("prune-share-state", self._pruning.run)

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._coordinator.stop()

    def _new_machine(self, _index: int) -> Machine:
        return ShareStateMachine(self.settings, self._knows)

    def _knows(self, key: ShareKey) -> bool:
        image = self._metadata.image
        if image is not self._seen:
            self._seen = image
            self._known.clear()
        # Every write asks, and hardly any of them finds another image.
        if key in self._known:
            return True
        topic = image.topics_by_id.get(TopicId(key.topic_id))
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return False
        self._known[key] = None
        return True

    def _image_changed(self, old: Image, new: Image) -> None:
        removed = list(old.topics_by_id.difference(new.topics_by_id).removed)
        if removed:
            self._coordinator.submit_to_all(TopicsDeleted(removed))

    # Commands.

    def submit(self, key: ShareKey, command: object) -> Outcome | Answer:
        """Give a command to the partition that holds a share partition's state. Errors are values."""
        return self._coordinator.submit(coordinator_key(key), command)

    def shard_of(self, key: ShareKey) -> Shard | None:
        """The loaded partition that holds a share partition's state, if it is here."""
        index = self.topic.partition_of(coordinator_key(key))
        return None if index is None else self.runtime.shards.get(index)

    def write(self, command: WriteState) -> Outcome | Answer:
        """Give a write to the partition that holds the state, the short way if that serves it."""
        shard = self.shard_of(command.key)
        if shard is None or shard.is_over:
            return self.submit(command.key, command)
        answer = _StagedWrite()
        staged = self.stage_write(shard, command, answer)
        if isinstance(staged, MillraceError):
            return staged
        return answer.outcome() if staged else shard.submit(command)

    def stage_write(self, shard: Shard, command: WriteState, answer: WriteAnswer) -> MillraceError | bool:
        """Write together with others of this turn of the loop. An error says why not; False that the general
        way has to serve this one; in both cases nothing has changed and nobody is told."""
        machine = shard.machine
        assert isinstance(machine, ShareStateMachine), machine
        state = machine.check_write(command)
        if isinstance(state, MillraceError):
            return state
        update = machine.update_of(state, command)
        if update is None or not shard.takes_records:
            return False
        key_bytes, batches = update_key(command.key), update.batches
        size_bytes = len(key_bytes) + VALUE_BYTES_MAX + len(batches) * BATCH_BYTES_MAX + RECORD_OVERHEAD
        if size_bytes > shard.batch_bytes_max:
            return False
        machine.apply_update(command.key, update)
        shard.stage([(key_bytes, update_value(update))], size_bytes, answer)
        return True

    # What there is.

    def machine_of(self, key: ShareKey) -> ShareStateMachine | MillraceError:
        """The machine that holds a share partition's state, or why it cannot be asked here."""
        return self._coordinator.machine_of(coordinator_key(key))


class _StagedWrite:
    """A write that was staged, for one who wants to know when it is committed."""

    __slots__ = ("_future", "_outcome")

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._future: Answer | None = None

    def stored(self, error: MillraceError | None) -> None:
        self._outcome = DONE if error is None else error
        if self._future is not None and not self._future.done():
            self._future.set_result(self._outcome)

    def outcome(self) -> Outcome | Answer:
        if self._outcome is not None:
            return self._outcome
        self._future = asyncio.get_running_loop().create_future()
        return self._future
