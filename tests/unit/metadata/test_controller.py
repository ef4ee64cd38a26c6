"""The rules of topics, partitions, producer ids and brokers, without a store."""

from __future__ import annotations

import pytest

from millrace.core.ids import Epoch, NodeId
from millrace.metadata.commands import (
    AllocateProducerIds,
    ConfirmDeletion,
    CreatePartitions,
    DeleteTopic,
    Policy,
    RegisterBroker,
    SetClusterId,
    SkipProducerIds,
    UnregisterBroker,
)
from millrace.metadata.controller import decide
from millrace.metadata.errors import (
    ContradictoryRequest,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicName,
    MetadataError,
    NodeIdInUse,
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from millrace.metadata.image import EMPTY
from millrace.metadata.store import ABSENT, Compare
from tests.unit.metadata.worlds import apply, broker, cluster, new_topic, topic_id


def test_a_topic_gets_the_broker_defaults_where_its_creator_says_nothing() -> None:
    policy = Policy(num_partitions=3, default_replication_factor=2)
    image = apply(cluster("a", "b"), new_topic("orders", 7, configs={"retention.ms": "5"}), policy=policy)
    topic = image.topics["orders"]
    assert image.topics_by_id[topic_id(7)] is topic
    assert dict(topic.configs) == {"retention.ms": "5"}
    assert len(topic.partitions) == 3
    for partition in topic.partitions:
        assert sorted(partition.replicas) == [1, 2]
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert partition.leader_epoch == 0
    assert not topic.internal


def test_the_coordinators_topics_are_internal() -> None:
    image = apply(cluster(None), new_topic("__consumer_offsets", 1))
    assert image.topics["__consumer_offsets"].internal


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "empty"),
        (".", "directory"),
        ("..", "directory"),
        ("a" * 250, "250 characters, the limit is 249"),
        ("a b", "only ASCII letters"),
        ("a/b", "only ASCII letters"),
        ("größe", "only ASCII letters"),
        ("a\n", "only ASCII letters"),
    ],
)
def test_names_that_no_topic_may_have(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        decide(cluster(None), new_topic(name, 1), Policy())


@pytest.mark.parametrize("name", ["a", "...", "a" * 249, "Orders_2.x-y", "0"])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert name in apply(cluster(None), new_topic(name, 1)).topics


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    image = apply(cluster(None), new_topic("a.b_c", 1))
    with pytest.raises(InvalidTopicName, match=r"'a\.b_c'"):
        decide(image, new_topic("a_b.c", 2), Policy())
    freed = apply(image, DeleteTopic(name="a.b_c"))
    assert "a_b.c" in apply(freed, new_topic("a_b.c", 2)).topics


def test_colliding_names_cannot_be_created_at_the_same_time() -> None:
    # Both are decided on an image without the other; only a key that both write can keep them apart.
    image = cluster(None)
    first, second = (decide(image, new_topic(name, 1), Policy()) for name in ("a.b", "a_b"))
    contested = set(first.compares) & set(second.compares)
    assert [compare.mod_revision for compare in contested] == [ABSENT]


@pytest.mark.parametrize(
    "command, error",
    [
        (new_topic("orders", 2), TopicExists),
        (new_topic("same id", 1), InvalidTopicName),
        (new_topic("same-id", 1), TopicExists),
        (new_topic("new", 2, partitions=0), InvalidPartitions),
        (new_topic("new", 2, partitions=10_001), InvalidPartitions),
        (new_topic("new", 2, replicas=0), InvalidReplicationFactor),
        (new_topic("new", 2, replicas=3), InvalidReplicationFactor),
        (new_topic("new", 2, configs={"no.such.setting": "1"}), InvalidConfig),
        (new_topic("new", 2, configs={"retention.ms": "a week"}), InvalidConfig),
        (new_topic("new", 2, assignments={0: [1], 2: [1]}), InvalidReplicaAssignment),
        (new_topic("new", 2, assignments={0: [1, 1]}), InvalidReplicaAssignment),
        (new_topic("new", 2, assignments={0: []}), InvalidReplicaAssignment),
        (new_topic("new", 2, assignments={0: [9]}), InvalidReplicaAssignment),
        (new_topic("new", 2, assignments={0: [1, 2], 1: [1]}), InvalidReplicaAssignment),
        (new_topic("new", 2, assignments={0: [1]}, partitions=1), ContradictoryRequest),
        (new_topic("new", 2, assignments={}), InvalidPartitions),
        (CreatePartitions(name="orders", count=2), InvalidPartitions),
        (CreatePartitions(name="orders", count=1), InvalidPartitions),
        (CreatePartitions(name="absent", count=5), UnknownTopic),
        (CreatePartitions(name="orders", count=4, assignments=[[1]]), InvalidReplicaAssignment),
        (CreatePartitions(name="orders", count=3, assignments=[[1, 2]]), InvalidReplicaAssignment),
        (DeleteTopic(name="absent"), UnknownTopic),
        (DeleteTopic(topic_id=topic_id(99)), UnknownTopicId),
    ],
)
def test_what_is_refused(command: object, error: type[MetadataError]) -> None:
    image = apply(cluster(None, None), new_topic("orders", 1, partitions=2))
    with pytest.raises(error):
        decide(image, command, Policy())  # type: ignore[arg-type]


def test_replicas_placed_by_hand_stay_where_they_were_put() -> None:
    image = apply(cluster("a", "b", "c"), new_topic("orders", 1, assignments={0: [3, 1], 1: [2, 3]}))
    image = apply(image, CreatePartitions(name="orders", count=3, assignments=[[1, 2]]))
    assert [partition.replicas for partition in image.topics["orders"].partitions] == [(3, 1), (2, 3), (1, 2)]


def test_added_partitions_leave_the_others_as_they_are() -> None:
    before = apply(cluster(None, None, None), new_topic("orders", 1, partitions=2, replicas=2))
    after = apply(before, CreatePartitions(name="orders", count=5))
    assert after.topics["orders"].partitions[:2] == before.topics["orders"].partitions
    assert all(len(partition.replicas) == 2 for partition in after.topics["orders"].partitions)


def test_a_deleted_topic_leaves_only_the_proof_of_its_deletion() -> None:
    before = apply(cluster(None, None), new_topic("a.b", 1, partitions=4, replicas=2))
    after = apply(before, DeleteTopic(topic_id=topic_id(1)))
    assert len(after.topics) == len(after.topics_by_id) == len(after.topic_names) == len(after.unclaimed) == 0
    deleted = after.deleted_topics[topic_id(1)]
    assert (deleted.name, sorted(deleted.brokers)) == ("a.b", [1, 2])
    half = apply(after, ConfirmDeletion(topic_id(1), NodeId(2)))
    assert half.deleted_topics[topic_id(1)].brokers == (1,)
    assert len(apply(half, ConfirmDeletion(topic_id(1), NodeId(1))).deleted_topics) == 0
    assert decide(EMPTY, ConfirmDeletion(topic_id(1), NodeId(1)), Policy()).is_empty


def test_a_topic_created_again_is_another_one() -> None:
    # F29: nothing of the old may reach the new.
    first = apply(cluster(None), new_topic("orders", 1, partitions=3, configs={"retention.ms": "1"}))
    again = apply(first, DeleteTopic(name="orders"), new_topic("orders", 2))
    assert again.topics["orders"].topic_id == topic_id(2)
    assert len(again.topics["orders"].partitions) == 1
    assert dict(again.topics["orders"].configs) == {}
    assert topic_id(1) not in again.topics_by_id


def test_deletion_can_be_switched_off() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    with pytest.raises(TopicDeletionDisabled):
        decide(image, DeleteTopic(name="orders"), Policy(is_topic_deletion_enabled=False))


def test_every_change_of_a_topic_compares_its_revision() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    revision = image.topics["orders"].mod_revision
    for command in (DeleteTopic(name="orders"), CreatePartitions(name="orders", count=2)):
        assert Compare("topics/orders", revision) in decide(image, command, Policy()).compares


def test_producer_id_blocks_never_overlap() -> None:
    image = apply(EMPTY, AllocateProducerIds(1000), AllocateProducerIds(500))
    assert image.next_producer_id == 1500
    assert apply(image, SkipProducerIds(100)).next_producer_id == 1500
    assert apply(image, SkipProducerIds(2000)).next_producer_id == 2000
    change = decide(image, AllocateProducerIds(1), Policy())
    assert change.compares == (Compare("producer_ids", image.producer_ids_revision),)


def test_a_cluster_keeps_its_first_id() -> None:
    image = apply(EMPTY, SetClusterId("one"))
    assert apply(image, SetClusterId("two")).cluster_id == "one"


def test_a_broker_with_the_id_of_a_living_one_is_refused() -> None:
    image = apply(EMPTY, RegisterBroker(broker(1, incarnation="a", directory_ids=["x"]), None))
    with pytest.raises(NodeIdInUse):
        decide(image, RegisterBroker(broker(1, incarnation="b", directory_ids=["y"]), None), Policy())


def test_a_broker_that_holds_the_same_disk_succeeds_the_one_before() -> None:
    image = apply(EMPTY, RegisterBroker(broker(1, incarnation="a", directory_ids=["x"]), None))
    again = apply(image, RegisterBroker(broker(1, "rack", incarnation="b", directory_ids=["y", "x"]), None))
    assert again.brokers[NodeId(1)].rack == "rack"
    assert again.brokers[NodeId(1)].epoch > image.brokers[NodeId(1)].epoch


def test_only_the_present_incarnation_can_unregister_a_broker() -> None:
    image = cluster("a", "b")
    assert decide(image, UnregisterBroker(NodeId(1), "another"), Policy()).is_empty
    assert list(apply(image, UnregisterBroker(NodeId(1), "first")).brokers) == [2]


def test_the_topology_revision_moves_only_with_what_clients_are_told() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    assert image.topology_revision == image.revision
    later = apply(image, AllocateProducerIds(1000))
    assert (later.revision, later.topology_revision) == (image.revision + 1, image.topology_revision)
    assert later.partition("orders", 0) is not None
    assert later.partition("orders", 1) is None
    assert later.partition("absent", 0) is None
    assert later.topics["orders"].partitions[0].leader_epoch == Epoch(0)
