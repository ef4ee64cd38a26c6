"""Gives commands to the machine that holds a key: the shell that groups and transactions share.

It owns two parts. The `InternalTopic` says which partition holds a key, and creates the topic; the `Runtime`
has a machine for each partition that this broker leads. Where no machine can be asked, the answer says why:
there is no topic yet, another broker coordinates the key, or the partition is still being loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from millrace.coordinator.decision import Machine
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.coordinator.internal_topic import InternalTopic
from millrace.coordinator.runtime import Answer, Outcome, Runtime
from millrace.core.background import Background
from millrace.core.errors import MillraceError

M = TypeVar("M", bound=Machine)


class Coordinator(Generic[M]):
    """All keys of one internal topic that this broker coordinates."""

    def __init__(self, topic: InternalTopic, runtime: Runtime, kind: type[M]) -> None:
        """`kind` is the class of the machines that the runtime makes."""
        assert topic.name == runtime.topic, (topic.name, runtime.topic)
        self.topic = topic
        self.runtime = runtime
        self._kind = kind

    def start(self, background: Background) -> None:
        """Load the partitions that this broker leads, until `stop`."""
        self.topic.start(background)
        self.runtime.start(background)

    def stop(self) -> None:
        """Stop, and answer everybody who waits."""
        self.runtime.stop()

    def submit(self, key: str, command: object) -> Outcome | Answer:
        """The outcome of a command (errors as values), or a future for it where something must be stored."""
        index = self.topic.partition_of(key)
        if index is None:
            return self._no_topic()
        shard = self.runtime.shards.get(index)
        return self.runtime.absence(index) if shard is None else shard.submit(command)

    def machine_of(self, key: str) -> M | MillraceError:
        """The machine that holds a key, or why it cannot be asked here."""
        index = self.topic.partition_of(key)
        if index is None:
            return self._no_topic()
        shard = self.runtime.shards.get(index)
        return self.runtime.absence(index) if shard is None else self._known(shard.machine)

    def machines(self) -> Iterator[M]:
        """The machines of all partitions that are loaded."""
        for shard in self.runtime.shards.values():
            yield self._known(shard.machine)

    def submit_to_all(self, command: object) -> None:
        """Give a command to every machine here; nobody waits for the outcomes."""
        for index in list(self.runtime.shards):
            self.runtime.submit(index, command)

    def _known(self, machine: Machine) -> M:
        assert isinstance(machine, self._kind), machine
        return machine

    def _no_topic(self) -> MillraceError:
        return CoordinatorNotAvailable(f"there is no {self.topic.name} yet")
