"""A broker is taken out only when it does not run and holds nothing, and is told what to do otherwise."""

from __future__ import annotations

from millrace.cli.cluster.unregistration import refusal
from millrace.cli.reassign.reassignments import Layout
from millrace.core.ids import NodeId, TopicPartition

GONE = NodeId(3)


def layout(running: tuple[int, ...], *places: tuple[int, ...]) -> Layout:
    replicas = {
        TopicPartition("t", number): tuple(NodeId(node_id) for node_id in nodes)
        for number, nodes in enumerate(places)
    }
    return Layout(
        racks={NodeId(node_id): None for node_id in running},
        addresses={NodeId(node_id): ("host", 9000 + node_id) for node_id in running},
        replicas=replicas,
        leaders={},
        in_sync=replicas,
    )


def test_a_broker_that_is_down_and_empty_may_go() -> None:
    assert refusal(layout((1, 2), (1, 2), (2, 1)), GONE) is None


def test_one_that_runs_is_to_be_stopped() -> None:
    said = refusal(layout((1, 2, 3), (1, 2)), GONE)
    assert said == "broker 3 runs at host:9003: stop it, and try again"


def test_one_that_holds_replicas_is_to_be_drained() -> None:
    said = refusal(layout((1, 2), (1, 3), (2, 1), (3, 2)), GONE)
    assert said == (
        "broker 3 still holds 2 replicas: drain it (`millrace reassign generate --drain 3 --output "
        "plan.json`, then `millrace reassign execute plan.json --wait`), and try again"
    )


def test_one_that_runs_and_holds_replicas_is_drained_before_it_stops() -> None:
    said = refusal(layout((1, 2, 3), (3, 2)), GONE)
    assert said is not None
    assert said.startswith("broker 3 runs at host:9003 and holds 1 replica: drain it (")
    assert said.endswith("), stop it, and try again")


def test_the_only_replica_can_be_had_from_nobody_else() -> None:
    said = refusal(layout((1, 2), (1, 3), (3,)), GONE)
    assert said is not None
    assert "still holds 2 replicas: start it again, because 1 replica of it cannot be had from else" in said
    assert said.endswith("), stop it, and try again")
