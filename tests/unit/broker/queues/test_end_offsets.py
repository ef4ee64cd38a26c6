"""The ends of partitions, here and at other leaders."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.queues.end_offsets import EndOffsets
from millrace.broker.replication.peers import Peers, PeerUnreachable
from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.image import NO_LEADER
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

HERE, THERE, GONE, NOBODY, UNSURE = (TopicPartition("t", number) for number in range(5))
LEADERS = (1, 2, 3, NO_LEADER, 1)


class OtherBrokers:
    def __init__(self) -> None:
        self.asked: list[tuple[int, list[tuple[str, list[int]]]]] = []

    async def call(self, node_id: NodeId, api_key: int, version: int, request: Any) -> Any:
        topics = [
            (topic.name, [each.partition_index for each in topic.partitions]) for topic in request.topics
        ]
        self.asked.append((node_id, topics))
        if node_id == 3:
            raise PeerUnreachable(node_id, "it is away")
        partitions = [
            ListOffsetsPartitionResponse(partition_index=1, offset=70),
            ListOffsetsPartitionResponse(partition_index=9, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def ends(peers: OtherBrokers | None) -> EndOffsets:
    def local(*, knows_its_end: bool) -> Any:
        return SimpleNamespace(
            is_leader=True, knows_its_end=knows_its_end, log=SimpleNamespace(high_watermark=50)
        )

    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=leader) for leader in LEADERS])
    metadata = SimpleNamespace(image=SimpleNamespace(topics={"t": topic}))
    found = {HERE: local(knows_its_end=True), UNSURE: local(knows_its_end=False)}
    partitions = SimpleNamespace(find=lambda name, number: found.get(TopicPartition(name, number)))
    return EndOffsets(
        cast("Metadata", metadata),
        cast("Partitions", partitions),
        None if peers is None else cast("Peers", peers),
    )


def test_every_leader_is_asked_once() -> None:
    peers = OtherBrokers()
    places = [HERE, THERE, GONE, NOBODY, UNSURE, TopicPartition("nosuch", 0)]
    found = asyncio.run(ends(peers).find(places))
    unknown = ErrorCode.LEADER_NOT_AVAILABLE
    assert {place: found[place] for place in places} == {
        HERE: 50,
        THERE: 70,
        GONE: unknown,
        NOBODY: unknown,
        UNSURE: unknown,
        TopicPartition("nosuch", 0): unknown,
    }
    assert peers.asked == [(2, [("t", [1])]), (3, [("t", [2])])]
    assert found[TopicPartition("t", 9)] is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_one_broker_alone_asks_nobody() -> None:
    assert asyncio.run(ends(None).find([HERE, THERE])) == {HERE: 50, THERE: ErrorCode.LEADER_NOT_AVAILABLE}
