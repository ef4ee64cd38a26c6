"""Encoded answers that hold until the cluster changes: thousands of partitions are encoded once for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

ENTRIES_MAX: Final = 64
"""More than the ways in which clients ask: there is an entry for each version, with each set of flags, at
each address of this broker."""


class AnswerCache:
    """The answers of one revision of the cluster, by the way in which they were asked for."""

    def __init__(self) -> None:
        self._revision = -1
        self._bodies: dict[Hashable, bytes] = {}

    def find(self, key: Hashable, revision: int) -> bytes | None:
        """The body kept under the key, if it was made for this revision of the cluster."""
        return self._bodies.get(key) if revision == self._revision else None

    def forget(self) -> None:
        """Forget all: others may see what they did not, or no longer."""
        self._bodies.clear()

    def keep(self, key: Hashable, revision: int, body: bytes) -> None:
        if revision != self._revision or len(self._bodies) >= ENTRIES_MAX:
            self._bodies.clear()
            self._revision = revision
        self._bodies[key] = body
