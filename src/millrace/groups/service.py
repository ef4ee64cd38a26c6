"""The face of groups to the rest of the broker: where a group lives, its commands, and what there is.

The shell that finds, creates and asks is `coordinator/coordinator.py`. This module adds two things: groups
hear of deleted topics, and new members get an id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.coordinator.coordinator import Coordinator
from millrace.coordinator.internal_topic import InternalTopic
from millrace.coordinator.runtime import Answer, Outcome, Runtime
from millrace.core.background import Background
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.groups.commands import GroupSettings, TopicsDeleted
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.kinds import Group, GroupRules
from millrace.groups.machine import GroupMachine
from millrace.groups.records import GroupRecordCodec
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions

OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopic:
    """How `__consumer_offsets` is created."""

    partition_count: int = 50
    replication_factor: int = 3
    segment_bytes: int = 104_857_600

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.segment_bytes),
        }


class KindOfGroups(Protocol):
    """What the groups of one kind share on this broker."""

    def new_rules(self, machine: GroupMachine) -> GroupRules: ...

    def start(self, groups: Groups, background: Background) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of groups beside classic ones."""

    consumers: Consumers | None = None
    further: Sequence[KindOfGroups] = ()


class Groups:
    """All groups of the cluster that this broker coordinates."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        chance: random.Random,
        settings: GroupSettings,
        offsets_topic: OffsetsTopic,
        kinds: Kinds | None = None,
        codec: GroupRecordCodec | None = None,
    ) -> None:
        """Without `kinds` it serves classic groups alone."""
        self.settings = settings
        kinds = kinds or Kinds()
        consumers = self.consumers = kinds.consumers
        self._further = kinds.further
        self._metadata = metadata
        self._chance = chance
        self.topic = InternalTopic(OFFSETS_TOPIC, metadata, offsets_topic)
        self.runtime = Runtime(
            OFFSETS_TOPIC,
            partitions,
            clock=clock,
            codec=codec or GroupRecordCodec(),
            new_machine=lambda _: GroupMachine(
                settings,
                None if consumers is None else consumers.new_rules,
                [kind.new_rules for kind in kinds.further],
            ),
        )
        self._coordinator = Coordinator(self.topic, self.runtime, GroupMachine)
        self.submit: Callable[[str, object], Outcome | Answer] = self._coordinator.submit
        """Gives a command to a group's machine: the outcome (errors as values), or a future for it where
        something must be stored."""
        self._unsubscribe: Callable[[], None] | None = None

    # Life.

    def start(self, background: Background) -> None:
        """Load the groups of this broker's partitions, and follow the metadata, until `stop`."""
        self._coordinator.start(background)
        self._unsubscribe = self._metadata.subscribe(self._image_changed)
        if self.consumers is not None:
            self.consumers.start(self, background)
        for kind in self._further:
            kind.start(self, background)

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self.consumers is not None:
            self.consumers.stop()
        for kind in self._further:
            kind.stop()
        self._coordinator.stop()

    def _image_changed(self, old: Image, new: Image) -> None:
        removed = old.topics_by_id.difference(new.topics_by_id).removed
        if removed:
            names = [topic.name for topic in removed.values()]
            self._coordinator.submit_to_all(TopicsDeleted(names, list(removed)))

    # Commands.

    def partition_of(self, group_id: str) -> int | None:
        """The partition of `__consumer_offsets` that holds a group; None while there is no such topic."""
        return self.topic.partition_of(group_id)

    def new_member_id(self, prefix: str) -> str:
        """An id that no member ever had, readable by its beginning."""
        bits = self._chance.getrandbits(128)
        digits = f"{bits & ~(0xF << 76) & ~(0x3 << 62) | 4 << 76 | 2 << 62:032x}"
        return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    # What there is.

    def machines(self) -> Iterator[GroupMachine]:
        """The machines of all partitions that are loaded."""
        return self._coordinator.machines()

    def machine_of(self, group_id: str) -> GroupMachine | MillraceError:
        """The machine that holds a group, or why it cannot be asked here."""
        return self._coordinator.machine_of(group_id)

    def find(self, group_id: str) -> Group | None:
        machine = self.machine_of(group_id)
        return None if isinstance(machine, MillraceError) else machine.groups.get(group_id)
