"""A group's committed offsets over the wire, with and without the wish for stable ones."""

from __future__ import annotations

import time
from typing import Final

from tests.compat.transactions.reading import Partition
from tests.harness.raw import Plain, RawConnection

OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
_PASSING: Final = {"coordinator_load_in_progress", "coordinator_not_available", "not_coordinator"}


def fetch_offset(bootstrap: str, group: str, where: Partition, *, require_stable: bool) -> Plain:
    """The partition's part of an OffsetFetch, after the coordinator has become ready."""
    host, _, port = bootstrap.rpartition(":")
    topic = {"name": where[0], "partition_indexes": [where[1]]}
    request = {
        "groups": [{"group_id": group, "topics": [topic]}],
        "require_stable": require_stable,
    }
    deadline = time.monotonic() + 60
    with RawConnection((host, int(port))) as connection:
        while True:
            connection.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
            (found,) = connection.call(OFFSET_FETCH, 8, request)["groups"]
            if found["error_code"] == "none":
                entry: Plain = found["topics"][0]["partitions"][0]
                return entry
            assert found["error_code"] in _PASSING, found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


def committed_offset(bootstrap: str, group: str, where: Partition) -> int:
    """The stable offset, -1 for none. While a transaction is about to end, this waits for it."""
    deadline = time.monotonic() + 60
    while True:
        found = fetch_offset(bootstrap, group, where, require_stable=True)
        if found["error_code"] == "none":
            return int(found["committed_offset"])
        assert found["error_code"] == "unstable_offset_commit", found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
