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

An entry belongs to those who may ask the same: connections with the same name and groups, from the same host,
share theirs, and nobody else finds them. Where nothing is restricted, all connections share one table. An
entry is made only after the general way has found that its asker may do this; when permissions change, the
world has changed, and all entries go.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from millrace.broker.network.dispatch import Route
    from millrace.core.world import World
    from millrace.security.acls.decisions import Access

ENTRIES_MAX: Final = 50_000
"""Of all askers together; then all entries are forgotten, and learnt anew."""

Table: TypeAlias = dict[Hashable, Any]
"""The entries of one API and version, whose handler knows what they are."""


class Recognised(dict["Route", Table]):
    """What connections of one asker have asked before and may ask again: `recognised[route]` to look,
    `remember` to add."""

    __slots__ = ("_recognition", "asker", "connections_count")

    def __init__(self, recognition: Recognition, asker: Hashable | None) -> None:
        super().__init__()
        self._recognition = recognition
        self.asker = asker
        """None for all connections, while nothing is restricted."""
        self.connections_count = 0

    def __missing__(self, route: Route) -> Table:
        table: Table = {}
        self[route] = table
        return table

    def remember(self, route: Route, key: Hashable, entry: object) -> None:
        """Keep what a request means, as found out without a pause since it was read."""
        recognition = self._recognition
        if self.asker is None and recognition.is_restricted:
            # What all share is no place for what somebody may do: who has come before there were permissions
            # takes the general way.
            return
        if key in self[route] or recognition.makes_room():
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

    def __init__(self, world: World, entries_max: int = ENTRIES_MAX, access: Access | None = None) -> None:
        self._entries_max = entries_max
        """0 recognises nothing: every request takes the general way."""
        self._askers: dict[Hashable | None, Recognised] = {}
        self._room = entries_max
        self._access = access
        world.watch(self._forget_all)

    def of(self, asker: Hashable | None) -> Recognised:
        """The entries of one asker (`Decisions.asker`)."""
        known = self._askers.get(asker)
        if known is None:
            known = self._askers[asker] = Recognised(self, asker)
        return known

    def enter(self, asker: Hashable | None) -> Recognised:
        """The entries of one asker, for a connection that calls `leave` with them when it ends."""
        known = self.of(asker)
        known.connections_count += 1
        return known

    def leave(self, known: Recognised) -> None:
        """A connection has no more to ask. Those without connections are forgotten, so that there are never
        more askers than connections."""
        known.connections_count -= 1
        if known.connections_count <= 0 and known.asker is not None:
            known.clear()
            del self._askers[known.asker]

    @property
    def is_restricted(self) -> bool:
        return self._access is not None and self._access.authorizer is not None

    @property
    def askers_count(self) -> int:
        return len(self._askers)

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
