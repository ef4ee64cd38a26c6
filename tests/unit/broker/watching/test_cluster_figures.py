"""What the metrics say of the cluster."""

from __future__ import annotations

from millrace.broker.watching.cluster_figures import cluster_figures
from millrace.core.ids import NodeId
from millrace.metadata.commands import ClaimController, Reassign, RegisterBroker, UnregisterBroker
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.store import LeaseId
from tests.unit.metadata.worlds import apply, broker, new_topic

ME, OTHER = NodeId(1), NodeId(2)


def two_brokers() -> Image:
    image = apply(EMPTY, *(RegisterBroker(broker(node_id), LeaseId(node_id)) for node_id in (1, 2)))
    return apply(image, new_topic("t", 1, assignments={0: [1, 2], 1: [2, 1]}), ClaimController(ME, "first"))


def values(image: Image, node_id: NodeId = ME) -> dict[str, float]:
    figures = cluster_figures(image, node_id)
    return {name.removeprefix("millrace_"): value for name, (_, value) in figures.items()}


def test_a_broker_that_is_alone_has_no_cluster_to_tell_of() -> None:
    assert cluster_figures(EMPTY, ME) == {}


def test_a_sound_cluster() -> None:
    assert values(two_brokers()) == {
        "cluster_brokers": 2,
        "cluster_members_down": 0,
        "cluster_controller": 1,
        "cluster_partitions_leaderless": 0,
        "partitions_led": 1,
        "partitions_under_replicated": 0,
        "partitions_reassigning": 0,
    }
    assert values(two_brokers(), OTHER)["cluster_controller"] == 0


def test_brokers_that_are_gone_are_counted() -> None:
    image = apply(two_brokers(), UnregisterBroker(OTHER, "first"))
    found = values(image)
    assert (found["cluster_brokers"], found["cluster_members_down"]) == (1, 1)


def test_partitions_that_move_are_counted_by_their_leader() -> None:
    image = apply(two_brokers(), RegisterBroker(broker(3), LeaseId(3)))
    image = apply(image, Reassign(topic="t", partition=0, replicas=[3, 2], is_factor_change_allowed=True))
    assert values(image)["partitions_reassigning"] == 1
    assert values(image, OTHER)["partitions_reassigning"] == 0
