"""Joins the rules of consumer groups to the rest: the cluster's topics, settings, and the matching of
patterns, which takes turns with other work of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from millrace.core.background import Background
from millrace.core.patterns import InvalidPattern, TopicPatterns
from millrace.groups.consumer.changes import preferred_assignor
from millrace.groups.consumer.commands import ConsumerSettings, PatternsResolved
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.consumer.member import ConsumerMember
from millrace.groups.consumer.rules import GroupsOfConsumers
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.security.acls.binding import Operation
from millrace.security.acls.decisions import Access, Decisions

log = logging.getLogger(__name__)

NOTHING_SET: Final[Mapping[str, str]] = {}
VIEWERS_MAX: Final = 10_000
"""Patterns of groups whose viewers are known; then all are forgotten, and known again when they are named."""


class LoadedGroups(Protocol):
    """The groups that this broker has loaded."""

    def machines(self) -> Iterator[GroupMachine]: ...

    def submit(self, group_id: str, command: object) -> object: ...


class Consumers:
    """What all consumer groups of this broker share: settings, topics, and patterns with what they match."""

    def __init__(self, metadata: Metadata, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.topics = ConsumerTopics(lambda: metadata.image)
        self._metadata = metadata
        self._patterns = TopicPatterns()
        self._refused: dict[str, None] = {}
        """Members' patterns that cannot be read here; each is logged once."""
        self._access: Access | None = None
        self._viewers: dict[tuple[str, str], Decisions] = {}
        """Who last named a pattern for a group: it matches what they may describe."""
        self._groups: LoadedGroups | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._has_new_topics = False
        self._background: Background | None = None
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

    def start(self, groups: LoadedGroups, background: Background) -> None:
        """Follow the topics of the cluster until `stop`."""
        self._groups = groups
        self._background = background
        self._unsubscribe = self._metadata.subscribe(self._image_changed)

    def judged_by(self, access: Access) -> None:
        """Let patterns match only topics that may be described by those who subscribe to them."""
        self._access = access
        access.watch(self._refresh_patterns)

    def stop(self) -> None:
        self._background = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._refresh is not None:
            self._refresh.cancel()

    async def resolve_for(self, group_id: str, text: str, decisions: Decisions) -> frozenset[str]:
        """As `resolve`, of what a member may describe; its permissions count as well when topics or
        permissions change later."""
        matched = await self.resolve(text)
        if not decisions.is_restricted:
            return matched
        if len(self._viewers) >= VIEWERS_MAX:
            self._viewers.clear()
        self._viewers[group_id, text] = decisions
        return _described_by(decisions, matched)

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
            # Topics have come or gone meanwhile; the next round looks only at new ones.

    def _image_changed(self, old: Image, new: Image) -> None:
        if new.topics is old.topics:
            return
        difference = old.topics_by_id.difference(new.topics_by_id)
        if difference.added or difference.removed:
            self._refresh_patterns()

    def _refresh_patterns(self) -> None:
        if self._background is None:
            return
        self._has_new_topics = True
        if self._refresh is None or self._refresh.done():
            self._refresh = self._background.start("topic-patterns", self._refresh_all())

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
            viewers: dict[tuple[str, str], Decisions] = {}
            for group in groups:
                texts = dict.fromkeys(
                    member.topic_pattern for member in group.members.values() if member.topic_pattern
                )
                for text in texts:
                    if text not in in_use:
                        in_use[text] = await self._resolve_stored(text, group.group_id)
                    viewer = self._viewers.get((group.group_id, text))
                    if viewer is not None:
                        viewers[group.group_id, text] = viewer
                if texts:
                    # This is stored before the next heartbeat is answered; nobody waits for it here.
                    self._groups.submit(
                        group.group_id,
                        PatternsResolved(
                            group.group_id, {text: self._shown(group, text, in_use[text]) for text in texts}
                        ),
                    )
            self._patterns.keep_only(in_use)
            self._viewers = viewers
            self._refused = {text: None for text in self._refused if text in in_use}

    def _shown(self, group: ConsumerGroup, text: str, matched: frozenset[str]) -> frozenset[str]:
        """What of these topics a group's pattern may match."""
        if self._access is None or self._access.authorizer is None:
            return matched
        viewer = self._viewers.get((group.group_id, text))
        if viewer is not None:
            return _described_by(viewer, matched)
        # Its members have not named it to this broker yet: until they do, nothing is added.
        present = group.patterns.get(text)
        return frozenset() if present is None else matched & present.topics

    async def _resolve_stored(self, text: str, group_id: str) -> frozenset[str]:
        """The topics that a member's pattern matches: none if it cannot be read here. Kafka or another
        version may have accepted such a pattern, and other members and groups must go on without it."""
        if text in self._refused:
            return frozenset()
        try:
            return await self.resolve(text)
        except InvalidPattern as error:
            self._refused[text] = None
            log.error("group %s has a stored subscription that matches nothing: %s", group_id, error)
            return frozenset()


def _described_by(decisions: Decisions, topics: frozenset[str]) -> frozenset[str]:
    return frozenset(topic for topic in topics if decisions.allows_on_topic(Operation.DESCRIBE, topic))
