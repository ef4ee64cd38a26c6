"""Plain fetches: whole batches only, in bounds, without what was aborted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import reading
from millrace.client.broker_client import BrokerClient
from millrace.core.ids import TopicPartition
from millrace.wire.records import ControlMarker, ControlType, Record, build_marker
from tests.unit.cli.queue.fakes import Cluster

PLACE = TopicPartition("t", 0)


def record(offset: int) -> Record:
    return Record(offset, 5, None, b"%d" % offset)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster({"t": 2})


def offsets_read(cluster: Cluster, offsets: range) -> list[int]:
    client = cast("BrokerClient", cluster)
    return [each.offset for each in reading.read(client, reading.topic_named(client, "t"), 0, offsets)]


def test_records_are_read_over_several_fetches_within_bounds(cluster: Cluster) -> None:
    cluster.add(PLACE, record(0), record(1), record(2))
    cluster.add(PLACE, record(3), record(4))
    assert offsets_read(cluster, range(5)) == [0, 1, 2, 3, 4]
    assert offsets_read(cluster, range(1, 4)) == [1, 2, 3]
    assert offsets_read(cluster, range(5, 5)) == []


def test_aborted_records_and_markers_are_left_out(cluster: Cluster) -> None:
    of_transaction: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    cluster.add(PLACE, record(0), base_sequence=0, **of_transaction)
    cluster.logs[PLACE].append(
        build_marker(
            ControlMarker(ControlType.ABORT, 0), offset=1, timestamp=5, producer_id=7, producer_epoch=0
        )
    )
    cluster.add(PLACE, record(2), base_sequence=1, **of_transaction)
    cluster.aborted = [(7, 0)]
    found = offsets_read(cluster, range(2))
    cluster.aborted = []
    assert (found, offsets_read(cluster, range(2, 3))) == ([], [2])


def test_a_partition_that_gives_nothing_is_an_error_and_no_endless_loop(cluster: Cluster) -> None:
    cluster.ends[PLACE] = 3
    with pytest.raises(RequestFailed, match="gives nothing at offset 0"):
        offsets_read(cluster, range(3))


def test_bounds_and_first_records(cluster: Cluster) -> None:
    client = cast("BrokerClient", cluster)
    cluster.add(PLACE, record(0), record(1))
    cluster.starts[PLACE] = 1
    topic = reading.topic_named(client, "t")
    assert reading.bounds(client, topic) == {0: range(1, 2), 1: range(0)}
    first = reading.first_record(client, topic, 0, range(1, 2))
    assert first is not None
    assert first.value == b"1"
    assert reading.first_record(client, topic, 1, range(0)) is None
    with pytest.raises(RequestFailed, match="no such topic: u"):
        reading.topic_named(client, "u")
