"""Joins the rules of share groups to the rest: the cluster's topics, and the settings of each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.core.background import Background
from millrace.core.override import override
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.service import Groups, KindOfGroups
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.share.rules import RulesOfShareGroups
from millrace.metadata.config_definitions.resolution import NOTHING_SET
from millrace.metadata.service import Metadata


class ShareGroups(KindOfGroups):
    """What all share groups of this broker have in common."""

    def __init__(
        self, metadata: Metadata, settings: Callable[[Mapping[str, str]], ShareGroupSettings]
    ) -> None:
        """`settings` gives what counts for a group, from what is set for it."""
        self.topics = ConsumerTopics(lambda: metadata.image)
        self._metadata = metadata
        self._resolve = settings
        self._default = settings(NOTHING_SET)
        self._own: dict[str, tuple[Mapping[str, str], ShareGroupSettings]] = {}
        """The settings of groups that have some, with what they were made from."""

    def settings_changed(self) -> None:
        """The broker's own settings have changed."""
        self._default = self._resolve(NOTHING_SET)
        self._own.clear()

    def settings_of(self, group_id: str) -> ShareGroupSettings:
        configs = self._metadata.image.group_configs.get(group_id)
        if configs is None:
            # Nearly all groups have no settings of their own.
            self._own.pop(group_id, None)
            return self._default
        known = self._own.get(group_id)
        if known is None or known[0] is not configs:
            known = self._own[group_id] = (configs, self._resolve(configs))
        return known[1]

    @override
    def new_rules(self, machine: GroupMachine) -> RulesOfShareGroups:
        return RulesOfShareGroups(machine, self.topics, self.settings_of)

    @override
    def start(self, groups: Groups, background: Background) -> None:
        pass

    @override
    def stop(self) -> None:
        pass
