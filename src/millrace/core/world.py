"""Who is told when the names in requests may stand for something else."""

from __future__ import annotations

from collections.abc import Callable


class World:
    """What requests name: topics and their ids, partitions, settings.

    Whoever changes any of these says so with `changed`, in the same step and before anybody can ask. Whoever
    keeps what a name meant watches, and forgets it."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` at every change; it must neither block nor raise."""
        self._watchers.append(changed)

    def changed(self) -> None:
        """Names may stand for something else from now on."""
        for watcher in self._watchers:
            watcher()
