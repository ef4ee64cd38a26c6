"""Watches a group's committed offsets from outside, with raw requests: they never go back by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Final, Self

from tests.compat.groups.members import Partition
from tests.harness.raw import Closed, RawConnection

OFFSET_FETCH: Final = 9
_PAUSE_S: Final = 0.05


def committed_offsets(
    connection: RawConnection, group: str, partitions: Iterable[Partition]
) -> dict[Partition, int] | None:
    """What the broker holds for these partitions (-1: nothing), or None while it cannot say."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    request: dict[str, Any] = {
        "groups": [
            {
                "group_id": group,
                "member_id": None,
                "member_epoch": -1,
                "topics": [{"name": topic, "partition_indexes": found} for topic, found in by_topic.items()],
            }
        ],
        "require_stable": False,
    }
    (answer,) = connection.call(OFFSET_FETCH, 9, request)["groups"]
    if answer["error_code"] != "none":
        return None
    return {
        (topic["name"], entry["partition_index"]): entry["committed_offset"]
        for topic in answer["topics"]
        for entry in topic["partitions"]
    }


class CommittedWatch:
    """Asks again and again while it is open. A broker that is away for a moment is no failure."""

    def __init__(self, address: tuple[str, int], group: str, partitions: Iterable[Partition]) -> None:
        self._address = address
        self._group = group
        self._partitions = list(partitions)
        self.seen: dict[Partition, int] = dict.fromkeys(self._partitions, -1)
        self.answers_count = 0
        self.steps_back: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def check(self) -> None:
        assert self.answers_count > 0, "the broker never told its offsets"
        assert not self.steps_back, self.steps_back

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with RawConnection(self._address, timeout_s=5) as connection:
                    while not self._is_over.is_set():
                        self._look(connection)
                        time.sleep(_PAUSE_S)
            except (Closed, OSError):
                time.sleep(_PAUSE_S)

    def _look(self, connection: RawConnection) -> None:
        found = committed_offsets(connection, self._group, self._partitions)
        if found is None:
            return
        self.answers_count += 1
        for partition, offset in found.items():
            if offset < self.seen[partition]:
                self.steps_back.append(f"{partition}: from {self.seen[partition]} to {offset}")
            self.seen[partition] = offset
