"""ElectLeaders, reassignments and UnregisterBroker, as clients of every version read the answers."""

from __future__ import annotations

import pytest

from millrace.core.ids import NodeId
from millrace.metadata.image import BrokerState
from millrace.metadata.service import NewTopic
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millrace.wire.messages.unregister_broker import UnregisterBrokerRequest
from tests.unit.broker.handlers.broker import Broker


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_only_broker_leads_as_it_should_already(broker: Broker, version: int) -> None:
    broker.create_topic("orders", 2)
    wanted = [TopicPartitions(topic="orders", partitions=[0, 7])]
    answer = broker.ask(ElectLeadersRequest(topic_partitions=wanted), version)
    (topic,) = answer.replica_election_results
    assert [(result.partition_id, result.error_code) for result in topic.partition_result] == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("kind", [0, 1])
def test_asked_about_all_a_client_hears_of_elections_only(broker: Broker, kind: int) -> None:
    broker.create_topic("orders", 2)
    answer = broker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=None), 2)
    assert answer.replica_election_results == []


def test_an_unknown_kind_of_election_is_refused(broker: Broker) -> None:
    answer = broker.ask(ElectLeadersRequest(election_type=9, topic_partitions=None), 2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def reassign(broker: Broker, *replicas: list[int] | None, version: int = 1) -> list[tuple[int, str | None]]:
    partitions = [
        ReassignablePartition(partition_index=number, replicas=nodes) for number, nodes in enumerate(replicas)
    ]
    topics = [ReassignableTopic(name="orders", partitions=partitions)]
    answer = broker.ask(AlterPartitionReassignmentsRequest(topics=topics), version)
    assert answer.error_code == ErrorCode.NONE
    (topic,) = answer.responses
    return [(result.error_code, result.error_message) for result in topic.partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_a_move_is_under_way_until_it_is_cancelled(broker: Broker, version: int) -> None:
    # On other brokers: replicas here would have to follow the moves.
    for node_id in (2, 3):
        other = BrokerState(node_id=NodeId(node_id), incarnation="x", rack=None, endpoints=())
        broker.run(broker.metadata.register_broker(other))
    topic = NewTopic(name="orders", assignments={number: [2] for number in range(3)}, configs={})
    broker.run(broker.metadata.create_topics([topic]))

    (moved, refused, idle) = reassign(broker, [2, 3], [2, 9], None, version=version)
    assert moved == (ErrorCode.NONE, None)
    assert refused[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "9" in (refused[1] or "")
    assert idle[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    for topics in (None, [ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0, 1])]):
        listed = broker.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        ((partition,),) = [topic.partitions for topic in listed.topics]
        assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == (
            [2, 3],
            [3],
            [],
        )
    assert reassign(broker, None)[0] == (ErrorCode.NONE, None)
    assert broker.ask(ListPartitionReassignmentsRequest(topics=None), 0).topics == []


def test_only_a_broker_that_is_down_is_removed(broker: Broker) -> None:
    async def join_and_die() -> None:
        lease_id = await broker.store.grant_lease(60_000)
        member = BrokerState(node_id=NodeId(2), incarnation="x", rack=None, endpoints=())
        await broker.metadata.register_broker(member, lease_id=lease_id)

    broker.run(join_and_die())
    alive = broker.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert alive.error_code == ErrorCode.INVALID_REQUEST
    assert "stop it first" in alive.error_message
    broker.run(broker.metadata.declare_dead(NodeId(2), "x"))

    removed = broker.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert (removed.error_code, removed.error_message) == (ErrorCode.NONE, None)
    again = broker.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
