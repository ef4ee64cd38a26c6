"""Plans of reassignments: the file format of Kafka's tool, and every mistake in a file said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.reassign.reassignments import (
    BadPlan,
    Layout,
    Plan,
    bytes_to_move,
    check_plan,
    read_plan,
    write_plan,
)
from millrace.core.ids import NodeId, TopicPartition

TWICE = (
    '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
    '{"topic": "t", "partition": 0, "replicas": [2]}]}'
)


def plan(*places: tuple[int, ...]) -> Plan:
    return {
        TopicPartition("t", number): tuple(NodeId(node_id) for node_id in nodes)
        for number, nodes in enumerate(places)
    }


def layout(*places: tuple[int, ...]) -> Layout:
    return Layout(
        racks={NodeId(node_id): None for node_id in (1, 2, 3)},
        addresses={},
        replicas=plan(*places),
        leaders={},
        in_sync=plan(*places),
    )


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(write_plan(plan((1, 2), (2, 3))))
    assert read_plan(path) == plan((1, 2), (2, 3))


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not JSON"),
        ('{"version": 2, "partitions": []}', "has version 2"),
        ('{"partitions": []}', "'version'"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": "x", "replicas": [1]}]}', "'x'"),
        (TWICE, "t-0 twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(BadPlan, match=said):
        read_plan(path)


def test_a_plan_must_fit_to_the_cluster() -> None:
    check_plan(plan((1, 2)), layout((2, 3)))
    with pytest.raises(BadPlan, match="no partition t-1"):
        check_plan(plan((1, 2), (1, 2)), layout((2, 3)))
    with pytest.raises(BadPlan, match=r"brokers \[9\] are not there; running: \[1, 2, 3\]"):
        check_plan(plan((1, 9)), layout((2, 3)))


def test_only_new_replicas_have_to_be_copied() -> None:
    sizes = {TopicPartition("t", 0): 100, TopicPartition("t", 1): 7}
    moved = bytes_to_move(layout((1, 2), (1, 2)), plan((2, 3), (3, 1)), sizes)
    assert moved == {3: 107}
