"""Joins the rules of consumer groups to the rest: the cluster's topics, settings, and the matching of
patterns, which takes turns with other work of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from millrace.groups.consumer_changes import preferred_assignor
from millrace.groups.consumer_commands import ConsumerSettings, PatternsResolved
from millrace.groups.consumer_group import ConsumerGroup
from millrace.groups.consumer_member import ConsumerMember
from millrace.groups.consumer_rules import GroupsOfConsumers
from millrace.groups.consumer_topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.patterns import TopicPatterns
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata

NOTHING_SET: Final[Mapping[str, str]] = {}


class LoadedGroups(Protocol):
    def machines(self) -> Iterator[GroupMachine]: ...

    def submit(self, group_id: str, command: object) -> object: ...


class Consumers:
    def __init__(self, metadata: Metadata, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.topics = ConsumerTopics(lambda: metadata.image)
        self._metadata = metadata
        self._patterns = TopicPatterns()
        self._groups: LoadedGroups | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._has_new_topics = False
        self._tasks: asyncio.TaskGroup | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def new_rules(self, machine: GroupMachine) -> GroupsOfConsumers:
        return GroupsOfConsumers(
            machine,
            self.topics,
            lambda: self.settings,
            lambda group_id: self._metadata.image.group_configs.get(group_id, NOTHING_SET),
            self._refresh_patterns,
        )

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str:
        return preferred_assignor(members, self.settings.assignors)

    def start(self, groups: LoadedGroups, tasks: asyncio.TaskGroup) -> None:
        """Follow the topics of the cluster until `stop`."""
        self._groups = groups
        self._tasks = tasks
        self._unsubscribe = self._metadata.subscribe(self._image_changed)

    def stop(self) -> None:
        self._tasks = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._refresh is not None:
            self._refresh.cancel()

    async def resolve(self, text: str) -> frozenset[str]:
        """The topics that a pattern matches now; raises InvalidPattern."""
        pattern = self._patterns.get(text)
        while True:
            topics = self._metadata.image.topics
            for found in pattern.resolve(topics):
                if found is None:
                    await asyncio.sleep(0)
                elif topics is self._metadata.image.topics:
                    return found
            # Topics have come or gone meanwhile; only what is new is looked at.

    def _image_changed(self, old: Image, new: Image) -> None:
        if new.topics is old.topics:
            return
        difference = old.topics_by_id.difference(new.topics_by_id)
        if difference.added or difference.removed:
            self._refresh_patterns()

    def _refresh_patterns(self) -> None:
        if self._tasks is None:
            return
        self._has_new_topics = True
        if self._refresh is None or self._refresh.done():
            self._refresh = self._tasks.create_task(self._refresh_all(), name="topic-patterns")

    async def _refresh_all(self) -> None:
        """Match the patterns of all groups against the topics that there are now."""
        while self._has_new_topics:
            self._has_new_topics = False
            assert self._groups is not None
            groups = [
                group
                for machine in self._groups.machines()
                for group in machine.groups.values()
                if isinstance(group, ConsumerGroup)
            ]
            in_use: dict[str, frozenset[str]] = {}
            for group in groups:
                texts = dict.fromkeys(
                    member.topic_pattern for member in group.members.values() if member.topic_pattern
                )
                for text in texts:
                    if text not in in_use:
                        in_use[text] = await self.resolve(text)
                if texts:
                    # Stored before the next heartbeat is answered; nobody waits for it here.
                    self._groups.submit(
                        group.group_id,
                        PatternsResolved(group.group_id, {text: in_use[text] for text in texts}),
                    )
            self._patterns.keep_only(in_use)
