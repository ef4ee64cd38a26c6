"""Requests of share consumers for the load generators, encoded by kio. Those that a loop sends thousands of
times are encoded once, and only numbers in them are replaced."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.harness.raw import decode_response, encode_request

CORRELATION_ID: Final = 7
CLIENT_ID: Final = "millrace-bench"
INCREMENTAL_ALTER_CONFIGS: Final = (44, 1)
SHARE_GROUP_HEARTBEAT: Final = (76, 1)
SHARE_FETCH: Final = (78, 2)
SHARE_ACKNOWLEDGE: Final = (79, 2)
TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32
SET: Final = 0
ACCEPT: Final = 1
BATCH_OPTIMIZED: Final = 0
RECORD_LIMIT: Final = 1
FETCH_BYTES_MAX: Final = 50 * 1024 * 1024
"""What clients ask for unless told otherwise (`fetch.max.bytes`)."""
_OK: Final = b"\x00\x00"
_EPOCH_MARK: Final = 0x5A5B5C5D
_OFFSET_MARK: Final = 0x5A5B5C5D_6A6B6C6D
_ERROR_AT: Final = 9
"""In an answer without its size: behind correlation id, tagged fields and throttle time."""
_ACKNOWLEDGE_ERROR_AT: Final = 38
"""The error of the only partition: behind the message, the lock's time and the topic's id."""
_ACQUIRED_TAIL: Final = struct.Struct(">BqqhBBBBB")
"""The only acquired range of the only partition, and what ends the answer behind it."""
_ENDS: Final = (0, 0, 0, 1, 0)


class Refused(Exception):
    """The broker answered with an error."""


def group_settings(group: str, settings: Mapping[str, str]) -> bytes:
    return _settings(GROUP_RESOURCE, group, settings)


def topic_settings(topic: str, settings: Mapping[str, str]) -> bytes:
    return _settings(TOPIC_RESOURCE, topic, settings)


def _settings(kind: int, name: str, settings: Mapping[str, str]) -> bytes:
    configs = [{"name": each, "config_operation": SET, "value": value} for each, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return framed(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})


def heartbeat(group: str, member: str, epoch: int, topics: Sequence[str] | None) -> bytes:
    """Epoch 0 joins, -1 leaves; topics only where they have changed."""
    return framed(
        SHARE_GROUP_HEARTBEAT,
        {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": None if topics is None else list(topics),
        },
    )


def share_fetch(
    group: str, member: str, epoch: int, topics: Sequence[tuple[uuid.UUID, int]], limits: Mapping[str, int]
) -> bytes:
    """`limits`: max_wait_ms, max_records, mode. Topics only in the first request of a session."""
    named = [
        {
            "topic_id": topic,
            "partitions": [{"partition_index": number, "acknowledgement_batches": []}],
        }
        for topic, number in topics
    ]
    return framed(
        SHARE_FETCH,
        {
            "group_id": group,
            "member_id": member,
            "share_session_epoch": epoch,
            "max_wait": limits["max_wait_ms"],
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "max_records": limits["max_records"],
            "batch_size": limits["max_records"],
            "share_acquire_mode": limits["mode"],
            "is_renew_ack": False,
            "topics": named,
            "forgotten_topics_data": [],
        },
    )


def share_acknowledge(
    group: str, member: str, epoch: int, topic: uuid.UUID, partition: int, first: int, last: int
) -> bytes:
    batch = {"first_offset": first, "last_offset": last, "acknowledge_types": [ACCEPT]}
    return framed(
        SHARE_ACKNOWLEDGE,
        {
            "group_id": group,
            "member_id": member,
            "share_session_epoch": epoch,
            "is_renew_ack": False,
            "topics": [
                {
                    "topic_id": topic,
                    "partitions": [{"partition_index": partition, "acknowledgement_batches": [batch]}],
                }
            ],
        },
    )


class FetchFrame:
    """A ShareFetch of an open session, again and again."""

    def __init__(self, group: str, member: str, limits: Mapping[str, int]) -> None:
        self._frame = bytearray(share_fetch(group, member, _EPOCH_MARK, (), limits))
        self._epoch_at = _place(self._frame, struct.pack(">i", _EPOCH_MARK))

    def at(self, epoch: int) -> bytearray:
        struct.pack_into(">i", self._frame, self._epoch_at, epoch)
        return self._frame


class AcknowledgeFrame:
    """The acceptance of a range of offsets, again and again."""

    def __init__(self, group: str, member: str, topic: uuid.UUID, partition: int) -> None:
        self._frame = bytearray(
            share_acknowledge(group, member, _EPOCH_MARK, topic, partition, _OFFSET_MARK, _OFFSET_MARK + 1)
        )
        offsets_at = _place(self._frame, struct.pack(">qq", _OFFSET_MARK, _OFFSET_MARK + 1))
        self._offsets_at = offsets_at
        # The marks of offsets begin with the same bytes.
        self._epoch_at = _place(self._frame[:offsets_at], struct.pack(">i", _EPOCH_MARK))

    def at(self, epoch: int, first: int, last: int) -> bytearray:
        struct.pack_into(">i", self._frame, self._epoch_at, epoch)
        struct.pack_into(">qq", self._frame, self._offsets_at, first, last)
        return self._frame


def acquired(answer: bytes) -> tuple[int, int] | None:
    """The first and the last offset that a ShareFetch has handed out, if any. Raises Refused."""
    if answer[_ERROR_AT : _ERROR_AT + 2] != _OK:
        raise Refused(f"ShareFetch: {decoded(SHARE_FETCH, answer)['error_code']}")
    if len(answer) > _ACQUIRED_TAIL.size:
        count, first, last, _, *ends = _ACQUIRED_TAIL.unpack_from(answer, len(answer) - _ACQUIRED_TAIL.size)
        if count == 2 and tuple(ends) == _ENDS and 0 <= first <= last:
            return first, last
    # No record, several ranges, or an error: seldom, and told by a codec.
    ranges = []
    for topic in decoded(SHARE_FETCH, answer)["responses"]:
        for partition in topic["partitions"]:
            if partition["error_code"] != "none":
                raise Refused(f"ShareFetch: {partition['error_code']}")
            ranges += [(each["first_offset"], each["last_offset"]) for each in partition["acquired_records"]]
    return (ranges[0][0], ranges[-1][1]) if ranges else None


def check_acknowledged(answer: bytes) -> None:
    """Raises Refused unless the broker has taken the acknowledgement."""
    is_taken = answer[_ERROR_AT : _ERROR_AT + 2] == _OK
    if is_taken and answer[_ACKNOWLEDGE_ERROR_AT : _ACKNOWLEDGE_ERROR_AT + 2] == _OK:
        return
    raise Refused(f"ShareAcknowledge: {decoded(SHARE_ACKNOWLEDGE, answer)}")


def decoded(api: tuple[int, int], answer: bytes) -> dict[str, Any]:
    """An answer without its size, as plain values; error codes by name."""
    return decode_response(*api, answer, CORRELATION_ID)


def framed(api: tuple[int, int], fields: Mapping[str, Any]) -> bytes:
    payload = encode_request(*api, fields, CORRELATION_ID, CLIENT_ID)
    return struct.pack(">i", len(payload)) + payload


def _place(frame: bytes | bytearray, mark: bytes) -> int:
    assert frame.count(mark) == 1, "the mark is there once"
    return frame.index(mark)
