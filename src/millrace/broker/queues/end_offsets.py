"""Where partitions end, wherever they are led: what a share group lags behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.broker.replication.peers import Peers, PeerUnreachable
from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.image import NO_LEADER
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LIST_OFFSETS_VERSION: Final = 7
LATEST: Final = -1
_CONSUMER: Final = -1
"""Not a replica: the end is what consumers may read."""


class EndOffsets:
    """Asks the log for its end here, and its leader elsewhere."""

    def __init__(self, metadata: Metadata, partitions: Partitions, peers: Peers | None = None) -> None:
        """`peers` is None where there is only one broker."""
        self._metadata = metadata
        self._partitions = partitions
        self._peers = peers

    async def find(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | ErrorCode]:
        """The end of each partition, or why nobody knows it."""
        found: dict[TopicPartition, int | ErrorCode] = {}
        elsewhere: dict[NodeId, list[TopicPartition]] = {}
        for place in places:
            partition = self._partitions.find(*place)
            if partition is not None and partition.is_leader and partition.knows_its_end:
                found[place] = partition.log.high_watermark
                continue
            leader = self._leader_of(place)
            if leader == NO_LEADER or self._peers is None or (partition is not None and partition.is_leader):
                found[place] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                elsewhere.setdefault(leader, []).append(place)
        if elsewhere and self._peers is not None:
            asked = [self._ask(self._peers, leader, some) for leader, some in elsewhere.items()]
            for answered in await asyncio.gather(*asked):
                found.update(answered)
        return found

    def _leader_of(self, place: TopicPartition) -> NodeId:
        topic = self._metadata.image.topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[place.partition].leader

    async def _ask(
        self, peers: Peers, leader: NodeId, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | ErrorCode]:
        topics: dict[str, ListOffsetsTopic] = {}
        for place in places:
            topic = topics.setdefault(place.topic, ListOffsetsTopic(name=place.topic))
            topic.partitions.append(ListOffsetsPartition(partition_index=place.partition, timestamp=LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        found: dict[TopicPartition, int | ErrorCode] = dict.fromkeys(places, ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            response = await peers.call(leader, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        except PeerUnreachable:
            return found
        for topic in response.topics:
            for each in topic.partitions:
                code = ErrorCode(each.error_code)
                found[TopicPartition(topic.name, each.partition_index)] = code or each.offset
        return found
