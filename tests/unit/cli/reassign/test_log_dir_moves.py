"""The `log_dirs` of plans: read, written and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.reassign.log_dir_moves import read_wishes, state_of_partition
from millrace.cli.reassign.reassignments import BadPlan, read_plan, write_plan
from millrace.core.ids import NodeId, TopicPartition

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 0)
ONE, TWO = NodeId(1), NodeId(2)


def test_directories_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = {ORDERS: (ONE, TWO), BILLS: (TWO,)}
    path.write_text(write_plan(plan, {(ORDERS, TWO): "/b"}))
    assert '"any"' in path.read_text()
    assert read_plan(path) == plan
    assert read_wishes(path) == {(ORDERS, TWO): "/b"}
    path.write_text(write_plan(plan))
    assert "log_dirs" not in path.read_text()
    assert read_wishes(path) == {}


def test_every_replica_has_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        '{"version": 1, "partitions":'
        ' [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["/a"]}]}'
    )
    with pytest.raises(BadPlan, match="orders-0 has 2 replicas"):
        read_wishes(path)


def test_a_partition_has_moved_when_all_its_replicas_have() -> None:
    replicas = {(ORDERS, ONE): "done", (ORDERS, TWO): "moving", (BILLS, ONE): "elsewhere"}
    assert state_of_partition(ORDERS, replicas, "done") == "moving"
    assert state_of_partition(ORDERS, replicas, "gone") == "gone"
    assert state_of_partition(BILLS, replicas, "done") == "elsewhere"
    assert state_of_partition(ORDERS._replace(partition=1), replicas, "done") == "done"
