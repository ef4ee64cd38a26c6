"""DescribeQuorum: what Kafka's tool reads of the metadata store, for one broker and for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.core.ids import NodeId
from millrace.metadata.image import BrokerState, Endpoint
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, Broker

CLUSTER = {"metadata.store": "etcd", "etcd.endpoints": "http://127.0.0.1:2379"}


def ask(broker: Broker, version: int = 2, *, topic: str = "__cluster_metadata") -> tuple[Any, Any]:
    """The answer, and what it says of the one partition."""
    wanted = DescribeQuorumRequestTopicData(
        topic_name=topic, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    answer = broker.ask(DescribeQuorumRequest(topics=[wanted]), version)
    ((partition,),) = [found.partitions for found in answer.topics]
    return answer, partition


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_single_broker_leads_and_is_the_only_voter(broker: Broker, version: int) -> None:
    answer, partition = ask(broker, version)
    assert (answer.error_code, partition.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    image = broker.metadata.image
    assert (partition.leader_id, partition.high_watermark) == (NODE_ID, image.revision)
    assert 0 < partition.leader_epoch <= image.revision
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (NODE_ID, image.revision)
    if version >= 1:
        assert voter.last_caught_up_timestamp == NOW_MS
    if version >= 2:
        ((node,),) = (answer.nodes,)
        assert [(node.node_id, each.host) for each in node.listeners] == [(NODE_ID, "registered.test")]


def test_another_topic_has_no_quorum(broker: Broker) -> None:
    _, partition = ask(broker, topic="orders")
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_cluster_has_its_controller_as_leader_and_all_its_brokers_as_voters(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", CLUSTER)
    broker.start()
    try:
        _, nobody = ask(broker)
        assert nobody.error_code == ErrorCode.LEADER_NOT_AVAILABLE

        async def two_more() -> None:
            for number in (2, 3):
                lease_id = await broker.store.grant_lease(60_000)
                endpoint = Endpoint("PLAINTEXT", f"host-{number}", 9092, "PLAINTEXT")
                member = BrokerState(
                    node_id=NodeId(number), incarnation="x", rack=None, endpoints=(endpoint,)
                )
                await broker.metadata.register_broker(member, lease_id=lease_id)
                if number == 2:
                    await broker.metadata.claim_controller(NodeId(2), "x")

        broker.run(two_more())
        joined = broker.metadata.image.members[NodeId(3)].mod_revision
        broker.run(broker.metadata.declare_dead(NodeId(3), "x"))
        answer, partition = ask(broker)
        image = broker.metadata.image
        assert (partition.leader_id, partition.leader_epoch) == (2, image.controller_revision)
        assert {voter.replica_id: voter.log_end_offset for voter in partition.current_voters} == {
            2: image.revision,
            3: joined,
        } | ({1: image.revision} if NODE_ID in image.brokers else {})
        hosts = {node.node_id: [each.host for each in node.listeners] for node in answer.nodes}
        assert (hosts[2], hosts[3]) == (["host-2"], [])
    finally:
        broker.stop()
