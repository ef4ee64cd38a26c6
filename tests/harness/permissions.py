"""Requests of every API that checks permissions, and what each of them needs: for the tests of the handlers
alone, and for the comparison with Apache Kafka.

No request changes anything that another one depends on, whoever is allowed to send it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millrace.security.acls.binding import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages import (
    alter_configs,
    delete_share_group_state,
    incremental_alter_configs,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_fetch,
    write_share_group_state,
)
from millrace.wire.messages import describe_producers as producers
from millrace.wire.messages import describe_topic_partitions as topic_partitions
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from millrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millrace.wire.messages.delete_groups import DeleteGroupsRequest
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.wire.messages.describe_acls import DescribeAclsRequest
from millrace.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from millrace.wire.messages.describe_cluster import DescribeClusterRequest
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millrace.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from millrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from millrace.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from millrace.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.wire.messages.end_txn import EndTxnRequest
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from millrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millrace.wire.messages.list_transactions import ListTransactionsRequest
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from millrace.wire.messages.share_fetch import ShareFetchRequest
from millrace.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millrace.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millrace.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millrace.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from millrace.wire.messages.sync_group import SyncGroupRequest
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millrace.wire.messages.unregister_broker import UnregisterBrokerRequest
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from millrace.wire.records import Record, build_batch

TOPIC: Final = "orders"
"""Exists, with one partition and one record."""
ABSENT: Final = "nothing"
"""Does not exist. Millrace and Kafka must not create it by themselves."""
GROUP: Final = "readers"
"""Has committed offsets of the topic."""
TRANSACTIONAL_ID: Final = "payments"
NO_ID: Final = bytes(16)
UNKNOWN_ID: Final = bytes(15) + b"\7"
AUTHORIZATION_CODES: Final = (29, 30, 31, 53)
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
GROUP_RESOURCE: Final = 32


class Grant(NamedTuple):
    """An operation that somebody may be allowed, or not."""

    operation: Operation
    resource_type: ResourceType
    name: str

    def acl(
        self, principal: str, *, is_denied: bool = False, is_prefixed: bool = False, host: str = "*"
    ) -> Acl:
        is_cluster = self.resource_type is ResourceType.CLUSTER
        is_prefix = is_prefixed and not is_cluster
        return Acl(
            self.resource_type,
            self.name[:3] if is_prefix else self.name,
            PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            principal,
            host,
            self.operation,
            Permission.DENY if is_denied else Permission.ALLOW,
        )


def on_topic(operation: Operation, name: str = TOPIC) -> Grant:
    return Grant(operation, ResourceType.TOPIC, name)


def on_group(operation: Operation) -> Grant:
    return Grant(operation, ResourceType.GROUP, GROUP)


def on_cluster(operation: Operation) -> Grant:
    return Grant(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def on_transactional_id(operation: Operation) -> Grant:
    return Grant(operation, ResourceType.TRANSACTIONAL_ID, TRANSACTIONAL_ID)


Way = tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and the ways in which it may be permitted: each is enough, if all of it is granted."""

    name: str
    key: ApiKey
    version: int
    make: Callable[[bytes], object]
    """The request, given the id of the topic."""
    ways: tuple[Way, ...]
    is_silent: bool = False
    """Whether what may not be seen is left out, without an error."""
    too_little: tuple[Way, ...] = ()
    """Permissions that are not enough, where those that are would change something."""
    group_first: bool = False
    """Whether what is wrong with the group is all that is told: the cases' group is none of its kind."""


def _batch(*, is_transactional: bool = False) -> bytes:
    records = [Record(0, 1_700_000_000_000, b"key", b"value")]
    if not is_transactional:
        return bytes(build_batch(records))
    return bytes(
        build_batch(records, producer_id=5_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    )


def _produce(
    topic_id: bytes | None, name: str = TOPIC, transactional_id: str | None = None
) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=_batch(is_transactional=transactional_id is not None))
    topic = TopicProduceData(name=name, partition_data=[data])
    if topic_id is not None:
        topic.topic_id = topic_id
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[topic])


def _fetch(topic_id: bytes, *, name: str = "", replica_id: int = -1) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=name, topic_id=topic_id, partitions=[wanted])],
    )
    if replica_id >= 0:
        request.replica_id = replica_id
        request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=1)
    return request


def _share_fetch(topic_id: bytes) -> ShareFetchRequest:
    topic = share_fetch.FetchTopic(
        topic_id=topic_id, partitions=[share_fetch.FetchPartition(partition_index=0)]
    )
    return ShareFetchRequest(
        group_id=GROUP, member_id="m", max_bytes=1 << 20, max_records=1, batch_size=1, topics=[topic]
    )


def _share_acknowledge() -> ShareAcknowledgeRequest:
    # Without a session: who may is told that there is none.
    return ShareAcknowledgeRequest(group_id=GROUP, member_id="other", share_session_epoch=1)


def _metadata(*names: str, topic_id: bytes = NO_ID, is_all: bool = False) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    if topic_id != NO_ID:
        topics = [MetadataRequestTopic(name=None, topic_id=topic_id)]
    return MetadataRequest(
        topics=None if is_all else topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


def _commit(name: str = TOPIC, topic_id: bytes | None = None) -> OffsetCommitRequest:
    topic = OffsetCommitRequestTopic(
        name=name, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    )
    if topic_id is not None:
        topic.topic_id = topic_id
    return OffsetCommitRequest(
        group_id=GROUP, member_id="", generation_id_or_member_epoch=-1, retention_time_ms=-1, topics=[topic]
    )


def _offset_fetch(*names: str, topic_id: bytes | None = None, is_all: bool = False) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in names]
    if topic_id is not None:
        topics = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=None if is_all else topics)
    return OffsetFetchRequest(groups=[group])


def _add_partitions(*names: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTIONAL_ID,
        v3_and_below_producer_id=5_000_000,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names],
    )


def _verify_partitions() -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=TRANSACTIONAL_ID,
                producer_id=5_000_000,
                producer_epoch=0,
                verify_only=True,
                topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
            )
        ]
    )


def _join() -> JoinGroupRequest:
    # Without protocols nobody becomes a member.
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="somebody",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _sync() -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=GROUP, generation_id=1, member_id="somebody", protocol_type="consumer", protocol_name="range"
    )


def _consumer_beat(*names: str, regex: str | None = None) -> ConsumerGroupHeartbeatRequest:
    # Of a member that is not there: nobody joins.
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="somebody",
        member_epoch=7,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=list(names) or None,
        subscribed_topic_regex=regex,
    )


def _streams_join() -> StreamsGroupHeartbeatRequest:
    # Without a rebalance time-out, which comes after the permissions: nobody joins.
    return StreamsGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="somebody",
        topology=Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=[TOPIC])]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="process",
    )


def _configs(resource_type: int, name: str) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=["retention.ms"]
            )
        ]
    )


def _alter(resource_type: int, name: str) -> alter_configs.AlterConfigsRequest:
    return alter_configs.AlterConfigsRequest(
        resources=[alter_configs.AlterConfigsResource(resource_type=resource_type, resource_name=name)],
        validate_only=True,
    )


def _alter_some(resource_type: int, name: str) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(resource_type=resource_type, resource_name=name)
        ],
        validate_only=True,
    )


def _txn_commit() -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id=TRANSACTIONAL_ID,
        group_id=GROUP,
        producer_id=5_000_000,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ],
    )


def _markers() -> WriteTxnMarkersRequest:
    # Of a partition that nobody has.
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=5_000_000,
                topics=[WritableTxnMarkerTopic(name=ABSENT, partition_indexes=[0])],
            )
        ]
    )


def _share_state_requests() -> Iterator[tuple[str, ApiKey, Any]]:
    """Without a group they are answered with nothing, after permissions were looked at."""
    init, write = initialize_share_group_state, write_share_group_state
    read, short = read_share_group_state, read_share_group_state_summary
    delete = delete_share_group_state
    yield (
        "initialize share state",
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        init.InitializeShareGroupStateRequest(
            topics=[init.InitializeStateData(topic_id=UNKNOWN_ID, partitions=[init.PartitionData()])]
        ),
    )
    yield (
        "read share state",
        ApiKey.READ_SHARE_GROUP_STATE,
        read.ReadShareGroupStateRequest(
            topics=[read.ReadStateData(topic_id=UNKNOWN_ID, partitions=[read.PartitionData()])]
        ),
    )
    yield (
        "write share state",
        ApiKey.WRITE_SHARE_GROUP_STATE,
        write.WriteShareGroupStateRequest(
            topics=[write.WriteStateData(topic_id=UNKNOWN_ID, partitions=[write.PartitionData()])]
        ),
    )
    yield (
        "delete share state",
        ApiKey.DELETE_SHARE_GROUP_STATE,
        delete.DeleteShareGroupStateRequest(
            topics=[delete.DeleteStateData(topic_id=UNKNOWN_ID, partitions=[delete.PartitionData()])]
        ),
    )
    yield (
        "sum up share state",
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        short.ReadShareGroupStateSummaryRequest(
            topics=[short.ReadStateSummaryData(topic_id=UNKNOWN_ID, partitions=[short.PartitionData()])]
        ),
    )


def _init(transactional_id: str | None) -> InitProducerIdRequest:
    # Half an identity: it is refused, after permissions were looked at.
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=10_000, producer_id=7, producer_epoch=-1
    )


R, W, C, DEL = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
A, D = Operation.ALTER, Operation.DESCRIBE
ACT, DC, AC = Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
GX, TX = on_group, on_topic
X = on_transactional_id
CL = on_cluster


def _cases() -> Iterator[Case]:
    key = ApiKey
    yield Case("produce", key.PRODUCE, 11, lambda _: _produce(None), ((TX(W),),))
    yield Case("produce by id", key.PRODUCE, 13, lambda topic: _produce(topic, ""), ((TX(W),),))
    yield Case(
        "produce to what is not there",
        key.PRODUCE,
        11,
        lambda _: _produce(None, ABSENT),
        ((TX(W, ABSENT),),),
    )
    yield Case(
        "produce in a transaction",
        key.PRODUCE,
        11,
        lambda _: _produce(None, TOPIC, TRANSACTIONAL_ID),
        ((X(W), TX(W)),),
    )
    yield Case("fetch", key.FETCH, 12, lambda _: _fetch(NO_ID, name=TOPIC), ((TX(R),),))
    yield Case("fetch by id", key.FETCH, 17, _fetch, ((TX(R),),))
    yield Case(
        "fetch what is not there", key.FETCH, 12, lambda _: _fetch(NO_ID, name=ABSENT), ((TX(R, ABSENT),),)
    )
    yield Case(
        "fetch as a follower", key.FETCH, 12, lambda _: _fetch(NO_ID, name=TOPIC, replica_id=9), ((CL(ACT),),)
    )
    yield Case("list offsets", key.LIST_OFFSETS, 7, _list_offsets(TOPIC), ((TX(D),), (TX(R),), (TX(W),)))
    yield Case("list offsets of nothing", key.LIST_OFFSETS, 7, _list_offsets(ABSENT), ((TX(D, ABSENT),),))
    yield Case("metadata", key.METADATA, 12, lambda _: _metadata(TOPIC), ((TX(D),), (TX(A),), (TX(DEL),)))
    yield Case("metadata of nothing", key.METADATA, 9, lambda _: _metadata(ABSENT), ((TX(D, ABSENT),),))
    yield Case("metadata by id", key.METADATA, 12, lambda topic: _metadata(topic_id=topic), ((TX(D),),))
    yield Case("all metadata", key.METADATA, 9, lambda _: _metadata(is_all=True), ((TX(D),),), is_silent=True)
    yield Case(
        "describe partitions",
        key.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda _: topic_partitions.DescribeTopicPartitionsRequest(
            topics=[topic_partitions.TopicRequest(name=name) for name in (TOPIC, ABSENT)]
        ),
        ((TX(D), TX(D, ABSENT)),),
    )
    yield from _group_cases()
    yield from _share_group_cases()
    yield from _topic_cases()
    yield from _transaction_cases()
    yield from _cluster_cases()
    yield from _security_cases()


def _list_offsets(name: str) -> Callable[[bytes], object]:
    topic = ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    return lambda _: ListOffsetsRequest(replica_id=-1, topics=[topic])


def _group_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case("commit", key.OFFSET_COMMIT, 8, lambda _: _commit(), ((GX(R), TX(R)),))
    yield Case("commit by id", key.OFFSET_COMMIT, 10, lambda topic: _commit("", topic), ((GX(R), TX(R)),))
    yield Case(
        "commit for an unknown id", key.OFFSET_COMMIT, 10, lambda _: _commit("", UNKNOWN_ID), ((GX(R),),)
    )
    yield Case("fetch offsets", key.OFFSET_FETCH, 8, lambda _: _offset_fetch(TOPIC), ((GX(D), TX(D)),))
    yield Case(
        "fetch offsets by id",
        key.OFFSET_FETCH,
        10,
        lambda topic: _offset_fetch(topic_id=topic),
        ((GX(D), TX(D)),),
    )
    yield Case(
        "fetch all offsets",
        key.OFFSET_FETCH,
        8,
        lambda _: _offset_fetch(is_all=True),
        ((GX(D), TX(D)),),
        is_silent=True,
    )
    yield Case(
        "find a group's coordinator",
        key.FIND_COORDINATOR,
        4,
        lambda _: FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]),
        ((GX(D),), (GX(R),)),
    )
    yield Case(
        "find a transaction's coordinator",
        key.FIND_COORDINATOR,
        4,
        lambda _: FindCoordinatorRequest(key_type=1, coordinator_keys=[TRANSACTIONAL_ID]),
        ((X(D),), (X(W),)),
    )
    yield Case("join", key.JOIN_GROUP, 9, lambda _: _join(), ((GX(R),),))
    yield Case("sync", key.SYNC_GROUP, 5, lambda _: _sync(), ((GX(R),),))
    yield Case(
        "heartbeat",
        key.HEARTBEAT,
        4,
        lambda _: HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="somebody"),
        ((GX(R),),),
    )
    yield Case(
        "leave",
        key.LEAVE_GROUP,
        5,
        lambda _: LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="somebody")]),
        ((GX(R),),),
    )
    yield Case(
        "describe groups",
        key.DESCRIBE_GROUPS,
        5,
        lambda _: DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True),
        ((GX(D),), (GX(DEL),)),
    )
    yield Case(
        "list groups", key.LIST_GROUPS, 4, lambda _: ListGroupsRequest(), ((CL(D),), (GX(D),)), is_silent=True
    )
    yield Case(
        "delete groups",
        key.DELETE_GROUPS,
        2,
        lambda _: DeleteGroupsRequest(groups_names=[GROUP + "-gone"]),
        ((Grant(DEL, ResourceType.GROUP, GROUP + "-gone"),),),
    )
    yield Case(
        "delete offsets",
        key.OFFSET_DELETE,
        0,
        lambda _: OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                OffsetDeleteRequestTopic(
                    name=ABSENT, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        ),
        ((GX(DEL), TX(R, ABSENT)),),
    )
    yield Case(
        "consumer heartbeat",
        key.CONSUMER_GROUP_HEARTBEAT,
        0,
        lambda _: _consumer_beat(TOPIC),
        ((GX(R), TX(D)),),
    )
    yield Case(
        "streams heartbeat",
        key.STREAMS_GROUP_HEARTBEAT,
        0,
        lambda _: StreamsGroupHeartbeatRequest(group_id=GROUP, member_id="somebody", member_epoch=7),
        ((GX(R),),),
    )
    yield Case("streams join", key.STREAMS_GROUP_HEARTBEAT, 0, lambda _: _streams_join(), ((GX(R), TX(D)),))
    yield Case(
        "streams describe",
        key.STREAMS_GROUP_DESCRIBE,
        0,
        lambda _: StreamsGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True),
        ((GX(D),),),
    )
    yield Case("share fetch", key.SHARE_FETCH, 2, _share_fetch, ((GX(R), TX(R)),))
    yield Case("share acknowledge", key.SHARE_ACKNOWLEDGE, 2, lambda _: _share_acknowledge(), ((GX(R),),))
    yield Case(
        "consumer describe",
        key.CONSUMER_GROUP_DESCRIBE,
        0,
        lambda _: ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True),
        ((GX(D),),),
    )


def _share_group_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case(
        "share heartbeat",
        key.SHARE_GROUP_HEARTBEAT,
        1,
        # Of a member that is not there: nobody joins.
        lambda _: ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id="somebody", member_epoch=7, subscribed_topic_names=[TOPIC]
        ),
        ((GX(R), TX(D)),),
    )
    yield Case(
        "share describe",
        key.SHARE_GROUP_DESCRIBE,
        1,
        lambda _: ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True),
        ((GX(D),),),
    )
    yield Case(
        "describe share offsets",
        key.DESCRIBE_SHARE_GROUP_OFFSETS,
        0,
        lambda _: DescribeShareGroupOffsetsRequest(
            groups=[
                DescribeShareGroupOffsetsRequestGroup(
                    group_id=GROUP,
                    topics=[DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])],
                )
            ]
        ),
        ((GX(D), TX(D)),),
    )
    yield Case(
        "alter share offsets",
        key.ALTER_SHARE_GROUP_OFFSETS,
        0,
        lambda _: AlterShareGroupOffsetsRequest(
            group_id=GROUP,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=TOPIC, partitions=[AlterShareGroupOffsetsRequestPartition(partition_index=0)]
                )
            ],
        ),
        ((GX(R), TX(R)),),
        group_first=True,
    )
    yield Case(
        "delete share offsets",
        key.DELETE_SHARE_GROUP_OFFSETS,
        0,
        lambda _: DeleteShareGroupOffsetsRequest(
            group_id=GROUP, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)]
        ),
        ((GX(DEL), TX(R)),),
        group_first=True,
    )


def _always(request: object) -> Callable[[bytes], object]:
    return lambda _: request


def _topic_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case(
        "create topics",
        key.CREATE_TOPICS,
        7,
        lambda _: CreateTopicsRequest(
            topics=[CreatableTopic(name=ABSENT, num_partitions=1, replication_factor=1)],
            timeout_ms=5_000,
            validate_only=True,
        ),
        ((TX(C, ABSENT), TX(DC, ABSENT)), (CL(C), TX(DC, ABSENT))),
    )
    yield Case(
        "delete topics",
        key.DELETE_TOPICS,
        6,
        lambda _: DeleteTopicsRequest(topics=[DeleteTopicState(name=ABSENT)], timeout_ms=5_000),
        ((TX(D, ABSENT),), (TX(DEL, ABSENT),), (CL(DEL),)),
    )
    yield Case(
        "delete topics by an unknown id",
        key.DELETE_TOPICS,
        6,
        lambda _: DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=UNKNOWN_ID)], timeout_ms=5_000
        ),
        ((),),
    )
    yield Case(
        "delete topics by id",
        key.DELETE_TOPICS,
        6,
        lambda topic: DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=topic)], timeout_ms=5_000
        ),
        (),
        too_little=((TX(D),), (TX(R),)),
    )
    yield Case(
        "delete topics by name",
        key.DELETE_TOPICS,
        6,
        lambda _: DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=5_000),
        (),
        too_little=((TX(D),), (TX(R),)),
    )
    yield Case(
        "create partitions",
        key.CREATE_PARTITIONS,
        3,
        lambda _: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)],
            timeout_ms=5_000,
            validate_only=True,
        ),
        ((TX(A),),),
    )
    yield Case(
        "delete records",
        key.DELETE_RECORDS,
        2,
        lambda _: DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
                )
            ],
            timeout_ms=5_000,
        ),
        ((TX(DEL),),),
    )
    yield Case(
        "epochs",
        key.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda _: OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                )
            ],
        ),
        ((TX(D),), (CL(ACT),)),
    )
    yield Case(
        "describe producers",
        key.DESCRIBE_PRODUCERS,
        0,
        lambda _: producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=TOPIC, partition_indexes=[0])]
        ),
        ((TX(R),),),
    )
    for resource_type, name, on in (
        (TOPIC_RESOURCE, TOPIC, TX),
        (BROKER_RESOURCE, "1", CL),
        (GROUP_RESOURCE, GROUP, GX),
    ):
        described, altered, changed = (make(resource_type, name) for make in (_configs, _alter, _alter_some))
        yield Case(
            f"describe configs {resource_type}",
            key.DESCRIBE_CONFIGS,
            4,
            _always(described),
            ((on(DC),), (on(AC),)),
        )
        if resource_type == TOPIC_RESOURCE:
            yield Case(
                f"alter configs {resource_type}",
                key.ALTER_CONFIGS,
                2,
                _always(altered),
                ((on(AC),),),
            )
        yield Case(
            f"alter some configs {resource_type}",
            key.INCREMENTAL_ALTER_CONFIGS,
            1,
            _always(changed),
            ((on(AC),),),
        )


def _transaction_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case(
        "a producer's id",
        key.INIT_PRODUCER_ID,
        4,
        lambda _: _init(None),
        ((CL(Operation.IDEMPOTENT_WRITE),), (TX(W),)),
    )
    yield Case("a transaction's id", key.INIT_PRODUCER_ID, 4, lambda _: _init(TRANSACTIONAL_ID), ((X(W),),))
    yield Case(
        "add partitions",
        key.ADD_PARTITIONS_TO_TXN,
        3,
        lambda _: _add_partitions(TOPIC),
        ((X(W), TX(W)),),
    )
    yield Case(
        "add several partitions",
        key.ADD_PARTITIONS_TO_TXN,
        3,
        lambda _: _add_partitions(TOPIC, ABSENT),
        ((X(W), TX(W), TX(W, ABSENT)),),
    )
    yield Case(
        "verify partitions", key.ADD_PARTITIONS_TO_TXN, 4, lambda _: _verify_partitions(), ((CL(ACT),),)
    )
    yield Case(
        "add offsets",
        key.ADD_OFFSETS_TO_TXN,
        3,
        lambda _: AddOffsetsToTxnRequest(
            transactional_id=TRANSACTIONAL_ID, producer_id=5_000_000, producer_epoch=0, group_id=GROUP
        ),
        ((X(W), GX(R)),),
    )
    yield Case(
        "end",
        key.END_TXN,
        3,
        lambda _: EndTxnRequest(
            transactional_id=TRANSACTIONAL_ID, producer_id=5_000_000, producer_epoch=0, committed=True
        ),
        ((X(W),),),
    )
    yield Case("write markers", key.WRITE_TXN_MARKERS, 1, lambda _: _markers(), ((CL(A),), (CL(ACT),)))
    for name, api_key, request in _share_state_requests():
        yield Case(name, api_key, 0, lambda _, request=request: request, ((CL(ACT),),))  # type: ignore[misc]
    yield Case(
        "commit in a transaction",
        key.TXN_OFFSET_COMMIT,
        3,
        lambda _: _txn_commit(),
        ((X(W), GX(R), TX(R)),),
    )
    yield Case(
        "describe transactions",
        key.DESCRIBE_TRANSACTIONS,
        0,
        lambda _: DescribeTransactionsRequest(transactional_ids=[TRANSACTIONAL_ID]),
        ((X(D),),),
    )
    yield Case(
        "list transactions",
        key.LIST_TRANSACTIONS,
        1,
        lambda _: ListTransactionsRequest(),
        ((X(D),),),
        is_silent=True,
    )


def _cluster_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case(
        "describe the cluster",
        key.DESCRIBE_CLUSTER,
        1,
        lambda _: DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1),
        ((CL(D),), (CL(A),)),
        is_silent=True,
    )
    yield Case(
        "move between directories",
        key.ALTER_REPLICA_LOG_DIRS,
        2,
        lambda _: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/nowhere", topics=[AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])]
                )
            ]
        ),
        ((CL(A),),),
    )
    yield Case(
        "describe directories",
        key.DESCRIBE_LOG_DIRS,
        4,
        lambda _: DescribeLogDirsRequest(topics=[]),
        ((CL(D),),),
    )
    yield Case(
        "elect leaders",
        key.ELECT_LEADERS,
        2,
        lambda _: ElectLeadersRequest(
            election_type=0,
            topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])],
            timeout_ms=5_000,
        ),
        ((CL(A),),),
    )
    yield Case(
        "reassign",
        key.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda _: AlterPartitionReassignmentsRequest(
            timeout_ms=5_000,
            topics=[
                ReassignableTopic(
                    name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=None)]
                )
            ],
        ),
        ((CL(A),),),
    )
    yield Case(
        "list reassignments",
        key.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda _: ListPartitionReassignmentsRequest(
            timeout_ms=5_000,
            topics=[ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=[0])],
        ),
        ((CL(D),),),
    )
    yield Case(
        "describe the quorum",
        key.DESCRIBE_QUORUM,
        2,
        lambda _: DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        ),
        ((CL(D),),),
    )
    yield Case(
        "unregister a broker",
        key.UNREGISTER_BROKER,
        0,
        lambda _: UnregisterBrokerRequest(broker_id=77),
        ((CL(A),),),
    )
    yield Case(
        "list resources",
        key.LIST_CONFIG_RESOURCES,
        1,
        lambda _: ListConfigResourcesRequest(resource_types=[TOPIC_RESOURCE]),
        ((CL(DC),),),
    )


STRANGER: Final = "somebody-whom-nobody-knows"


def _security_cases() -> Iterator[Case]:
    key = ApiKey
    yield Case(
        "describe permissions",
        key.DESCRIBE_ACLS,
        3,
        lambda _: DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=f"User:{STRANGER}",
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        ((CL(D),),),
    )
    yield Case(
        "create permissions",
        key.CREATE_ACLS,
        3,
        # It has no name, and is refused for that once its sender may do this.
        lambda _: CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=2,
                    resource_pattern_type=3,
                    principal=f"User:{STRANGER}",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        ((CL(A),),),
    )
    yield Case(
        "delete permissions",
        key.DELETE_ACLS,
        3,
        lambda _: DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=1,
                    resource_name_filter=None,
                    pattern_type_filter=1,
                    principal_filter=f"User:{STRANGER}",
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
        ((CL(A),),),
    )
    yield Case(
        "describe quotas",
        key.DESCRIBE_CLIENT_QUOTAS,
        1,
        lambda _: DescribeClientQuotasRequest(),
        ((CL(DC),),),
    )
    yield Case(
        "alter quotas",
        key.ALTER_CLIENT_QUOTAS,
        1,
        lambda _: AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(
                    entity=[AlterClientQuotasRequestEntityData(entity_type="user", entity_name=STRANGER)],
                    ops=[OpData(key="producer_byte_rate", value=1000.0)],
                )
            ],
            validate_only=True,
        ),
        ((CL(AC),),),
    )
    yield Case(
        "describe passwords",
        key.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda _: DescribeUserScramCredentialsRequest(users=[UserName(name=STRANGER)]),
        ((CL(D),),),
    )
    yield Case(
        "alter passwords",
        key.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda _: AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=STRANGER, mechanism=1)]
        ),
        ((CL(A),),),
    )


CASES: Final = tuple(_cases())


class Scenario(NamedTuple):
    """A case with the permissions that its sender has."""

    case: Case
    name: str
    grants: tuple[tuple[Grant, bool, bool], ...]
    """Each with whether it is denied and whether it is for a prefix."""
    is_permitted: bool | None
    """None where the denial of an operation leaves what it implied: a comparison has to tell."""
    host: str = "*"

    def acls(self, principal: str) -> list[Acl]:
        return [
            grant.acl(principal, is_denied=is_denied, is_prefixed=is_prefixed, host=self.host)
            for grant, is_denied, is_prefixed in self.grants
        ]


def _manners(case: Case) -> Iterator[Scenario]:
    """Other manners of allowing and denying the same."""
    (way,) = case.ways
    literal = tuple((grant, False, False) for grant in way)
    all_names = tuple((grant._replace(name="*"), False, False) for grant in way)
    all_operations = tuple((grant._replace(operation=Operation.ALL), False, False) for grant in way)
    yield Scenario(case, "here", literal, True, host="127.0.0.1")
    yield Scenario(case, "elsewhere", literal, False, host="10.9.9.9")
    yield Scenario(case, "all names", all_names, True)
    yield Scenario(case, "all operations", all_operations, True)
    for place, (grant, _, _) in enumerate(all_names):
        yield Scenario(case, f"all names denied {place}", (*literal, (grant, True, False)), False)
    for place, (grant, _, _) in enumerate(all_operations):
        yield Scenario(case, f"all operations denied {place}", (*literal, (grant, True, False)), False)
        yield Scenario(case, f"a prefix denied {place}", (*literal, (grant, True, True)), False)


def scenarios() -> Iterator[Scenario]:
    """Each case with no permission, with those that it needs, literal and prefixed, without one of them, and
    with one of them denied."""
    for case in CASES:
        yield Scenario(case, "none", (), case.ways == ((),))
        for number, way in enumerate(case.too_little):
            yield Scenario(case, f"too little {number}", tuple((grant, False, False) for grant in way), False)
        if case.name in ("fetch", "produce", "commit"):
            yield from _manners(case)
        for number, way in enumerate(case.ways):
            if not way:
                continue
            literal = tuple((grant, False, False) for grant in way)
            yield Scenario(case, f"way {number}", literal, True)
            yield Scenario(
                case, f"way {number}, prefixed", tuple((grant, False, True) for grant in way), True
            )
            for place, denied in enumerate(way):
                is_permitted = False if number == 0 else None
                yield Scenario(
                    case, f"way {number}, denied {place}", (*literal, (denied, True, False)), is_permitted
                )
                if len(way) > 1:
                    left = tuple(each for at, each in enumerate(literal) if at != place)
                    yield Scenario(case, f"way {number} without {place}", left, False)


_TELLING: Final = {
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "key",
    "index",
    "partition",
    "partition_index",
    "partition_id",
    "resource_name",
    "resource_type",
}


def told(response: object) -> Any:
    """What an answer tells of permissions: error codes, what is named and what is left out, and the
    operations that are allowed. The order counts for nothing."""
    if dataclasses.is_dataclass(response):
        found: dict[str, Any] = {}
        for each in dataclasses.fields(response):
            value = getattr(response, each.name)
            if each.name.endswith("error_code") or each.name in _TELLING:
                found[each.name] = value
            elif each.name == "nodes":
                # Where controllers listen.
                continue
            elif each.name == "configs":
                # Which settings there are is another question.
                found[each.name] = bool(value)
            elif each.name == "topic_id":
                found[each.name] = "none" if value == NO_ID else "some"
            elif each.name.endswith("authorized_operations"):
                found[each.name] = value
            elif isinstance(value, list) or dataclasses.is_dataclass(value):
                inner = told(value)
                if inner:
                    found[each.name] = inner
        return found
    if isinstance(response, list):
        return sorted((told(each) for each in response), key=repr)
    return None


def codes_of(response: object) -> Iterator[int]:
    """All error codes in an answer."""
    yield from _codes(told(response))


def _codes(found: Any) -> Iterator[int]:
    if isinstance(found, Mapping):
        for name, value in found.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from _codes(value)
    elif isinstance(found, list):
        for each in found:
            yield from _codes(each)
