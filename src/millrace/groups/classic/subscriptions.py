"""Reads and writes what consumers tell each other in classic groups: subscriptions and assignments."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from millrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_encoder import Encoder, compile_encoder

_INT16: Final = struct.Struct(">h")
_SUBSCRIPTION_VERSION_MAX: Final = 3
_ASSIGNMENT_VERSION_MAX: Final = 3
_subscriptions: Final[dict[int, Decoder]] = {}
_assignments: Final[dict[int, Decoder]] = {}
_assignment_encoders: Final[dict[int, Encoder]] = {}


def parse_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """The subscription; None for other bytes, because other protocols may put what they like here."""
    version = _version(metadata, _SUBSCRIPTION_VERSION_MAX)
    if version is None:
        return None
    decode = _subscriptions.get(version)
    if decode is None:
        decode = compile_decoder(ConsumerProtocolSubscription, version, flexible=False, exact=False)
        _subscriptions[version] = decode
    try:
        found: ConsumerProtocolSubscription = decode(metadata, _INT16.size)
    except MalformedRequest:
        return None
    return found


def parse_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """The partitions of each topic; None for bytes that are no assignment."""
    version = _version(assignment, _ASSIGNMENT_VERSION_MAX)
    if version is None:
        return None
    decode = _assignments.get(version)
    if decode is None:
        decode = compile_decoder(ConsumerProtocolAssignment, version, flexible=False, exact=False)
        _assignments[version] = decode
    try:
        found: ConsumerProtocolAssignment = decode(assignment, _INT16.size)
    except MalformedRequest:
        return None
    return {each.topic: each.partitions for each in found.assigned_partitions}


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all these subscriptions; None if one of them cannot be read."""
    topics: dict[str, None] = {}
    for each in metadata:
        subscription = parse_subscription(each)
        if subscription is None:
            return None
        topics.update(dict.fromkeys(subscription.topics))
    return frozenset(topics)


def _version(data: bytes, version_max: int) -> int | None:
    """The version to read. A version that is too new begins with the fields of the newest known one."""
    if len(data) < _INT16.size:
        return None
    version: int = _INT16.unpack_from(data)[0]
    return min(version, version_max) if version >= 0 else None


def format_assignment(partitions: Mapping[str, list[int]], *, like: bytes) -> bytes:
    """An assignment in the version of the subscription `like`, which its reader is sure to know."""
    version = _version(like, _ASSIGNMENT_VERSION_MAX) or 0
    encode = _assignment_encoders.get(version)
    if encode is None:
        encode = compile_encoder(ConsumerProtocolAssignment, version, flexible=False)
        _assignment_encoders[version] = encode
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=topic, partitions=numbers) for topic, numbers in partitions.items()
        ],
        user_data=None,
    )
    return _INT16.pack(version) + encode(message)
