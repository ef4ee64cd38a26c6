"""Encoded answers that hold until the cluster changes: thousands of partitions are encoded once for all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

ENTRIES_MAX: Final = 64
"""One for each way to ask: versions, flags and addresses of this broker. More is no client."""


class AnswerCache:
    def __init__(self) -> None:
        self._revision = -1
        self._bodies: dict[Hashable, bytes] = {}

    def find(self, key: Hashable, revision: int) -> bytes | None:
        """The body kept under the key, if it was made for this revision of the cluster."""
        return self._bodies.get(key) if revision == self._revision else None

    def keep(self, key: Hashable, revision: int, body: bytes) -> None:
        if revision != self._revision or len(self._bodies) >= ENTRIES_MAX:
            self._bodies.clear()
            self._revision = revision
        self._bodies[key] = body
