"""OffsetCommit requests of many groups, one outstanding on each connection, from one epoll loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks import group_frames as frames
from benchmarks.connection import Connection
from benchmarks.generators.protocol import run_generator
from benchmarks.generators.requests import send

READY_S: Final = 60.0
OFFSET: Final = 1_000_000
OK: Final = b"\x00\x00"


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    topic, address = arguments["topic"], (arguments["host"], arguments["port"])
    groups = [f"{arguments['group']}-{number}" for number in range(arguments["groups"])]
    error_at = frames.offset_commit_error_at(topic)
    commits = [frames.offset_commit(group, topic, 0, OFFSET) for group in groups]
    _wait_until_served(address, groups, commits, error_at)
    return send(arguments, commits, error_at)


def _wait_until_served(
    address: tuple[str, int], groups: list[str], commits: list[bytes], error_at: int
) -> None:
    """Wait for the coordinators: the first question for one creates the topic of offsets."""
    deadline = time.perf_counter() + READY_S
    with Connection(*address) as connection:
        for group, commit in zip(groups, commits, strict=True):
            connection.request(frames.find_coordinator(group))
            # These answers come without their size: everything stands four bytes earlier.
            while connection.request(commit)[error_at - 4 : error_at - 2] != OK:
                if time.perf_counter() > deadline:
                    raise TimeoutError("the coordinator of a group never answers")
                time.sleep(0.05)


if __name__ == "__main__":
    run_generator(generate)
