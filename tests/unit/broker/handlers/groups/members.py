"""Members of classic groups and their commits, as requests, for the tests of the APIs of groups."""

from __future__ import annotations

from typing import Any

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.unit.broker.handlers.broker import Broker
from tests.unit.groups.worlds import subscription


def join(broker: Broker, version: int = 9, **values: Any) -> Any:
    request: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    }
    if version >= 1:
        request["rebalance_timeout_ms"] = 20_000
    return broker.ask(JoinGroupRequest(**{**request, **values}), version)


def member(broker: Broker, **values: Any) -> str:
    """A member of the Stable group `g` in generation 1."""
    first = join(broker, **values)
    joined = first if not first.error_code else join(broker, member_id=first.member_id, **values)
    assert joined.error_code == ErrorCode.NONE, joined
    member_id = str(joined.member_id)
    synced = broker.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=member_id,
            group_instance_id=values.get("group_instance_id"),
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
        ),
        5,
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    return member_id


def commit(broker: Broker, version: int = 9, topic: str = "t", partition: int = 0, **values: Any) -> int:
    known = broker.metadata.image.topics.get(topic)
    wanted = OffsetCommitRequestTopic(
        partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)]
    )
    if version < 10:
        wanted.name = topic
    else:
        wanted.topic_id = known.topic_id if known is not None else bytes(range(16))
    request = OffsetCommitRequest(**{"group_id": "g", **values}, topics=[wanted])
    return int(broker.ask(request, version).topics[0].partitions[0].error_code)
