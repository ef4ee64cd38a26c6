"""F8: whatever happened to the store, logs on disk become topics again, and none is asked to be deleted."""

from __future__ import annotations

from millrace.core.ids import NO_TOPIC_ID, Epoch, NodeId
from millrace.metadata.adoption import Adoption, FoundLog, belongs_to, plan_adoption
from millrace.metadata.commands import DeleteTopic
from millrace.metadata.image import Image
from tests.unit.metadata.worlds import CountedIds, apply, cluster, new_topic, topic_id

ME = NodeId(1)


def plan(image: Image, *found: FoundLog, next_producer_id: int = 0) -> Adoption:
    ids = CountedIds()
    for _ in range(100):
        ids.topic_id()
    return plan_adoption(image, found, node_id=ME, next_producer_id=next_producer_id, ids=ids)


def test_a_lost_store_is_rebuilt_from_the_directories() -> None:
    before = apply(cluster(None), new_topic("a.b", 1, partitions=3), new_topic("orders", 2))
    found = [
        FoundLog(topic.name, number, topic.topic_id, Epoch(4))
        for topic in before.topics.values()
        for number in range(len(topic.partitions))
    ]
    adoption = plan(cluster(None), *found, next_producer_id=17)
    after = apply(cluster(None), *adoption.commands)
    assert adoption.strays == []
    assert after.next_producer_id == 17
    for topic in before.topics.values():
        again = after.topics[topic.name]
        assert again.topic_id == topic.topic_id
        assert [state.leader_epoch for state in again.partitions] == [4] * len(topic.partitions)
        assert [state.replicas for state in again.partitions] == [(1,)] * len(topic.partitions)


def test_a_missing_partition_in_between_comes_back_empty() -> None:
    after = apply(cluster(None), *plan(cluster(None), FoundLog("orders", 2, topic_id(5))).commands)
    assert len(after.topics["orders"].partitions) == 3


def test_directories_without_an_id_get_one_together() -> None:
    # Kafka before 2.8 wrote no partition.metadata.
    adoption = plan(cluster(None), FoundLog("old", 0, None), FoundLog("old", 1, NO_TOPIC_ID))
    topic = apply(cluster(None), *adoption.commands).topics["old"]
    assert topic.topic_id == topic_id(101)
    assert len(topic.partitions) == 2


def test_the_metadata_log_of_kafka_and_foreign_directories_are_no_topics() -> None:
    adoption = plan(
        cluster(None), FoundLog("__cluster_metadata", 0, topic_id(5)), FoundLog("my photos", 0, None)
    )
    assert (adoption.commands, adoption.strays) == ([], [])


def test_what_the_store_knows_needs_nothing() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    adoption = plan(image, FoundLog("orders", 0, topic_id(1)), FoundLog("orders", 0, None))
    assert (adoption.commands, adoption.strays) == ([], [])


def test_a_log_of_another_topic_of_the_same_name_is_set_aside() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    other, beyond = FoundLog("orders", 0, topic_id(9)), FoundLog("orders", 5, topic_id(1))
    adoption = plan(image, other, beyond)
    assert (adoption.commands, adoption.strays) == ([], [other, beyond])


def test_of_two_topics_of_one_name_the_larger_is_adopted_and_the_other_set_aside() -> None:
    found = [FoundLog("orders", number, topic_id(3 if number == 1 else 4)) for number in range(3)]
    adoption = plan(cluster(None), *found)
    assert adoption.strays == [found[1]]
    topic = apply(cluster(None), *adoption.commands).topics["orders"]
    assert (topic.topic_id, len(topic.partitions)) == (topic_id(4), 3)


def test_a_copied_directory_does_not_become_a_second_topic_of_the_same_id() -> None:
    image = apply(cluster(None), new_topic("orders", 1))
    copied, twice = FoundLog("orders-copy", 0, topic_id(1)), FoundLog("z", 0, topic_id(7))
    adoption = plan(image, copied, FoundLog("y", 0, topic_id(7)), twice)
    assert adoption.strays == [copied, twice]
    assert "y" in apply(image, *adoption.commands).topics


def test_logs_of_a_deleted_topic_are_left_to_the_deletion() -> None:
    # The broker died between the deletion and the removal of the files: the topic must not come back.
    image = apply(cluster(None), new_topic("orders", 1), DeleteTopic(name="orders"))
    adoption = plan(image, FoundLog("orders", 0, topic_id(1)))
    assert (adoption.commands, adoption.strays) == ([], [])


def test_of_two_logs_with_one_name_the_metadata_knows_whose_topic_is_there() -> None:
    deleted = apply(cluster(None), new_topic("orders", 1), DeleteTopic(name="orders"))
    image = apply(deleted, new_topic("orders", 2))
    assert [belongs_to(image)("orders", topic_id(number)) for number in (1, 2, 3)] == [False, True, False]
    assert [belongs_to(deleted)("orders", topic_id(number)) for number in (1, 2)] == [False, None]


def test_a_store_from_a_backup_does_not_take_leader_epochs_back() -> None:
    image = apply(cluster(None), new_topic("orders", 1, partitions=2))
    adoption = plan(
        image, FoundLog("orders", 0, topic_id(1), Epoch(6)), FoundLog("orders", 1, topic_id(1), Epoch(0))
    )
    states = apply(image, *adoption.commands).topics["orders"].partitions
    assert [state.leader_epoch for state in states] == [6, 0]
    assert states[0].partition_epoch == 1


def test_a_replica_that_moved_away_while_the_broker_was_down_is_set_aside() -> None:
    image = apply(cluster(None, None), new_topic("orders", 1, assignments={0: [2], 1: [1]}))
    moved, kept = FoundLog("orders", 0, topic_id(1)), FoundLog("orders", 1, topic_id(1))
    adoption = plan(image, moved, kept)
    assert (adoption.commands, adoption.strays) == ([], [moved])
