"""Requests that are known by their bytes: what clients ask again and again is worked out once.

Produce, Fetch, OffsetCommit and heartbeats repeat themselves: a client sends the same bytes all day, and only
records, offsets or nothing at all change between them. What the repeated bytes mean is kept here, by these
bytes or by the connection that sent them, for all APIs alike.

A stale entry is a wrong answer, so there is one rule. **An entry says what names mean in the present
`World`, and all entries are forgotten whenever that changes**: with every new image of the metadata (topics,
ids, partitions, leaders, settings) and every partition that this broker takes up or gives up. What can change
while the world stays the same (whether this broker leads and how many replicas are in sync, how a log is
configured and where it stands, what a group says of a member) is no part of an entry: who recognises a
request asks for it anew each time, of the same objects as the general way.

An entry belongs to those who may ask the same: connections of one principal share theirs, and nobody else
finds them. Permissions, when there are any, need no more than to say that the world has changed when they
change.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from millrace.broker.network.dispatch import Route
    from millrace.core.world import World

ENTRIES_MAX: Final = 50_000
"""Of all askers together; then all entries are forgotten, and learnt anew."""

Table: TypeAlias = dict[Hashable, Any]
"""The entries of one API and version, whose handler knows what they are."""


class Recognised(dict["Route", Table]):
    """What connections of one principal have asked before and may ask again: `recognised[route]` to look,
    `remember` to add."""

    __slots__ = ("_recognition",)

    def __init__(self, recognition: Recognition) -> None:
        super().__init__()
        self._recognition = recognition

    def __missing__(self, route: Route) -> Table:
        table: Table = {}
        self[route] = table
        return table

    def remember(self, route: Route, key: Hashable, entry: object) -> None:
        """Keep what a request means, as found out without a pause since it was read."""
        if key in self[route] or self._recognition.makes_room():
            self[route][key] = entry

    def forget(self, key: Hashable) -> None:
        """Nobody will ask by this key again: a connection has ended."""
        for table in self.values():
            table.pop(key, None)

    @property
    def entries_count(self) -> int:
        return sum(len(table) for table in self.values())


class Recognition:
    """The owner of all entries."""

    def __init__(self, world: World, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        """0 recognises nothing: every request takes the general way."""
        self._askers: dict[str | None, Recognised] = {}
        self._room = entries_max
        world.watch(self._forget_all)

    def of(self, principal: str | None) -> Recognised:
        """The entries of one principal; None while nobody has to say who it is."""
        known = self._askers.get(principal)
        if known is None:
            known = self._askers[principal] = Recognised(self)
        return known

    @property
    def entries_count(self) -> int:
        return sum(asker.entries_count for asker in self._askers.values())

    def makes_room(self) -> bool:
        """Whether there may be one entry more; others have gone for it if need be."""
        if self._entries_max <= 0:
            return False
        if self._room <= 0:
            # Those that were forgotten one by one have left room too.
            self._room = self._entries_max - self.entries_count
            if self._room <= 0:
                self._forget_all()
        self._room -= 1
        return True

    def _forget_all(self) -> None:
        self._room = self._entries_max
        for asker in self._askers.values():
            asker.clear()
