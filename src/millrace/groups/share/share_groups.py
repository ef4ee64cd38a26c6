"""Joins the rules of share groups to the rest: the cluster's topics, and the settings of each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.core.background import Background
from millrace.core.override import override
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.own_settings import OwnSettings
from millrace.groups.service import Groups, KindOfGroups
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.share.rules import RulesOfShareGroups
from millrace.metadata.service import Metadata


class ShareGroups(KindOfGroups):
    """What all share groups of this broker have in common."""

    def __init__(
        self, metadata: Metadata, settings: Callable[[Mapping[str, str]], ShareGroupSettings]
    ) -> None:
        """`settings` gives what counts for a group, from what is set for it."""
        self.topics = ConsumerTopics(lambda: metadata.image)
        self._settings = OwnSettings(metadata, settings)
        self.settings_of = self._settings.of
        self.settings_changed = self._settings.broker_changed

    @override
    def new_rules(self, machine: GroupMachine) -> RulesOfShareGroups:
        return RulesOfShareGroups(machine, self.topics, self.settings_of)

    @override
    def start(self, groups: Groups, background: Background) -> None:
        pass

    @override
    def stop(self) -> None:
        pass
