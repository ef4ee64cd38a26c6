"""Requests of consumer groups for the load generators, encoded by kio: nothing of Millrace's own codecs."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.harness.raw import decode_response, encode_request

CORRELATION_ID: Final = 7
JOIN_GROUP: Final = (11, 5)
SYNC_GROUP: Final = (14, 3)
HEARTBEAT: Final = (12, 3)
CONSUMER_GROUP_HEARTBEAT: Final = (68, 1)
FIND_COORDINATOR: Final = (10, 2)
METADATA: Final = (3, 12)
OFFSET_COMMIT: Final = (8, 7)
REBALANCE_TIMEOUT_MS: Final = 60_000
SESSION_TIMEOUT_MS: Final = 45_000
PROTOCOL: Final = "range"
# In an answer without its size: behind the correlation id and the throttle time.
HEARTBEAT_ERROR_AT: Final = 8


def join_group(group: str, member: str, topic: str) -> bytes:
    name = topic.encode()
    subscription = struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)
    return _framed(
        JOIN_GROUP,
        {
            "group_id": group,
            "session_timeout": SESSION_TIMEOUT_MS,
            "rebalance_timeout": REBALANCE_TIMEOUT_MS,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": PROTOCOL, "metadata": subscription}],
        },
    )


def sync_group(group: str, member: str, generation: int, shares: Mapping[str, bytes]) -> bytes:
    return _framed(
        SYNC_GROUP,
        {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": None,
            "assignments": [{"member_id": name, "assignment": share} for name, share in shares.items()],
        },
    )


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    name = topic.encode()
    head = struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", len(partitions))
    return head + struct.pack(f">{len(partitions)}i", *partitions) + struct.pack(">i", -1)


def assigned_count(share: bytes) -> int:
    """How many partitions of its one topic an assignment holds."""
    if not share:
        return 0
    (name_length,) = struct.unpack_from(">h", share, 6)
    return int(struct.unpack_from(">i", share, 8 + name_length)[0])


def heartbeat(group: str, member: str, generation: int) -> bytes:
    return _framed(
        HEARTBEAT,
        {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": None,
        },
    )


def consumer_heartbeat(
    group: str, member: str, epoch: int, topic: str, owned: Mapping[uuid.UUID, Sequence[int]] | None
) -> bytes:
    """A heartbeat of the new protocol: without `owned` nothing has changed, at epoch 0 the member joins."""
    is_joining = epoch == 0
    return _framed(
        CONSUMER_GROUP_HEARTBEAT,
        {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": REBALANCE_TIMEOUT_MS if is_joining else -1,
            "subscribed_topic_names": [topic] if is_joining else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None
            if owned is None
            else [{"topic_id": each, "partitions": list(numbers)} for each, numbers in owned.items()],
        },
    )


def find_coordinator(group: str) -> bytes:
    return _framed(FIND_COORDINATOR, {"key": group, "key_type": 0})


def offset_commit(group: str, topic: str, partition: int, offset: int) -> bytes:
    """A commit outside of any membership, as a consumer that assigns its partitions itself sends it."""
    entry = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return _framed(
        OFFSET_COMMIT,
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [entry]}],
        },
    )


def offset_commit_error_at(topic: str) -> int:
    """Where a framed OffsetCommit answer for one partition holds its error code."""
    size_correlation_throttle, topic_count, partition_count, partition_index = 12, 4, 4, 4
    return (
        size_correlation_throttle + topic_count + 2 + len(topic.encode()) + partition_count + partition_index
    )


def decoded(api: tuple[int, int], answer: bytes) -> dict[str, Any]:
    """An answer without its size, as plain values; error codes by name."""
    return decode_response(*api, answer, CORRELATION_ID)


def _framed(api: tuple[int, int], fields: Mapping[str, Any]) -> bytes:
    payload = encode_request(*api, fields, CORRELATION_ID, "millrace-bench")
    return struct.pack(">i", len(payload)) + payload
