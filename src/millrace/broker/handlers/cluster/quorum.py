"""DescribeQuorum, told of the metadata store: brokers stand for voters, the controller for their leader.

Kafka keeps its metadata in a log of which controllers have copies. Here a store has it (etcd, or a file), and
any broker may become the controller. So the parts of an answer mean:

- leader: the broker that is the controller; its epoch: the store's revision at which it took office;
- high watermark: the store's revision up to which this broker knows everything;
- voters: all brokers that belong to the cluster. A broker that runs follows the store as this one does, so
  this broker's revision stands for the end of its log; for a broker that is down the last revision does at
  which its entry changed.
"""

from __future__ import annotations

from typing import Final

from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.core.ids import NodeId
from millrace.metadata.image import Image
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)

METADATA_TOPIC: Final = "__cluster_metadata"
"""There is no such topic here; Kafka's tools ask for it by this name."""
EPOCH_MAX: Final = 2**31 - 1


def describe_quorum(ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeQuorumResponse(error_code=code, error_message=code.message)
    image = ctx.services.metadata.image
    topics = [
        DescribeQuorumResponseTopicData(
            topic_name=topic.topic_name,
            partitions=[
                _described(ctx, image)
                if (topic.topic_name, partition.partition_index) == (METADATA_TOPIC, 0)
                else _failed(partition.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=_nodes(image))


def _described(ctx: RequestContext, image: Image) -> DescribeQuorumResponsePartitionData:
    own_id = ctx.services.config.node_id
    leader = image.controller_id
    epoch = image.controller_revision
    if not ctx.services.config.is_clustered:
        # A single broker has no election: it has been in office since it registered.
        leader, epoch = own_id, image.brokers[own_id].epoch
    if leader is None:
        return _failed(0, ErrorCode.LEADER_NOT_AVAILABLE)
    now_ms = ctx.services.clock.wall_ms()
    return DescribeQuorumResponsePartitionData(
        error_message=None,
        leader_id=leader,
        leader_epoch=min(epoch, EPOCH_MAX),
        high_watermark=image.revision,
        current_voters=[_voter(image, node_id, now_ms) for node_id in _voters(image)],
    )


def _voters(image: Image) -> list[NodeId]:
    return sorted({*image.members, *image.brokers})


def _voter(image: Image, node_id: NodeId, now_ms: int) -> ReplicaState:
    if node_id in image.brokers:
        return ReplicaState(
            replica_id=node_id,
            log_end_offset=image.revision,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
    return ReplicaState(replica_id=node_id, log_end_offset=image.members[node_id].mod_revision)


def _nodes(image: Image) -> list[Node]:
    """The addresses of the voters; nobody knows those of voters that are down."""
    return [
        Node(
            node_id=node_id,
            listeners=[
                Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
                for endpoint in image.brokers[node_id].endpoints
            ]
            if node_id in image.brokers
            else [],
        )
        for node_id in _voters(image)
    ]


def _failed(partition: int, code: ErrorCode) -> DescribeQuorumResponsePartitionData:
    return DescribeQuorumResponsePartitionData(
        partition_index=partition, error_code=code, error_message=None, leader_id=-1
    )


# v1 adds when voters were last heard of, v2 error messages, directories and the voters' addresses.
DESCRIBE_QUORUM: Final = Api(
    ApiKey.DESCRIBE_QUORUM, versions=(0, 2), handle=describe_quorum, checks=(on_cluster(Operation.DESCRIBE),)
)
