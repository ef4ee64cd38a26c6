"""What can be asked of an image beside its fields."""

from __future__ import annotations

from millrace.core.ids import NodeId
from millrace.metadata.commands import RegisterBroker, ReportOffline, UnregisterBroker
from millrace.metadata.image import EMPTY, collision_name
from millrace.metadata.store import LeaseId
from tests.unit.metadata.worlds import apply, broker, cluster, new_topic, topic_id


def test_a_partition_is_there_or_not() -> None:
    image = apply(cluster("a"), new_topic("t", 1, partitions=2))
    state = image.partition("t", 1)
    assert state is image.topics["t"].partitions[1]
    for name, number in (("t", 2), ("t", -1), ("u", 0)):
        assert image.partition(name, number) is None


def test_brokers_that_cannot_serve_their_replica() -> None:
    image = apply(cluster("a", "b"), new_topic("t", 1, assignments={0: [1, 2]}))
    assert image.offline_at(topic_id(1), 0) == frozenset()
    image = apply(image, ReportOffline(NodeId(2), "first", {topic_id(1): [0]}))
    assert image.offline_at(topic_id(1), 0) == {2}
    assert image.offline_at(topic_id(1), 1) == frozenset()
    assert image.offline_at(topic_id(2), 0) == frozenset()


def test_members_that_are_not_there_are_fenced() -> None:
    assert EMPTY.fenced == ()
    image = apply(EMPTY, RegisterBroker(broker(1), LeaseId(1)))
    assert image.fenced == ()
    assert apply(image, UnregisterBroker(NodeId(1), "first")).fenced == (1,)


def test_names_collide_when_their_metrics_would() -> None:
    assert collision_name("a.b") == collision_name("a_b")
