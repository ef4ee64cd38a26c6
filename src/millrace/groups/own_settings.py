"""What counts for a group of one kind: what is set for it, else what its broker has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from millrace.metadata.config_definitions.resolution import NOTHING_SET
from millrace.metadata.service import Metadata

Settings = TypeVar("Settings")


class OwnSettings(Generic[Settings]):
    """The settings of all groups of a kind; working them out is not cheap, so they are kept."""

    def __init__(self, metadata: Metadata, resolve: Callable[[Mapping[str, str]], Settings]) -> None:
        """`resolve` gives what counts for a group, from what is set for it."""
        self._metadata = metadata
        self._resolve = resolve
        self._default = resolve(NOTHING_SET)
        self._own: dict[str, tuple[Mapping[str, str], Settings]] = {}
        """The settings of groups that have some, with what they were made from."""

    def broker_changed(self) -> None:
        """The broker's own settings have changed."""
        self._default = self._resolve(NOTHING_SET)
        self._own.clear()

    def of(self, group_id: str) -> Settings:
        configs = self._metadata.image.group_configs.get(group_id)
        if configs is None:
            # Nearly all groups have no settings of their own.
            self._own.pop(group_id, None)
            return self._default
        known = self._own.get(group_id)
        if known is None or known[0] is not configs:
            known = self._own[group_id] = (configs, self._resolve(configs))
        return known[1]
