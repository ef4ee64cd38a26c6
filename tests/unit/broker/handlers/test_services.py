"""What handlers ask their services: where a partition is, who leads it, and where its readers are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.core.ids import NodeId, TopicId
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import NodeEndpoint
from tests.unit.broker.handlers.broker import NODE_ID, Broker
from tests.unit.metadata.worlds import broker as broker_state

FOLLOWER = NodeId(2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.start()
    broker.create_topic("orders", 2)
    yield broker
    broker.stop()


def test_why_a_partition_is_not_here(broker: Broker) -> None:
    services = broker.services
    assert services.absent_partition_error("nothing", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert services.absent_partition_error("orders", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert services.absent_partition_error("orders", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert services.absence("", TopicId(bytes(16)), 0) is ErrorCode.UNKNOWN_TOPIC_ID
    known = services.metadata.image.topics["orders"].topic_id
    assert services.absence("", known, 5) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert services.absence("orders", None, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_partition_on_a_failed_disk_is_told_apart(broker: Broker) -> None:
    topic_id = broker.metadata.image.topics["orders"].topic_id
    broker.log_directories.unreachable[topic_id, 0] = None
    assert broker.services.absent_partition_error("orders", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.services.absent_partition_error("orders", 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_leads_a_partition(broker: Broker) -> None:
    services = broker.services
    leader_epoch = broker.metadata.image.topics["orders"].partitions[0].leader_epoch
    assert services.current_leader("orders", None, 0) == (NODE_ID, leader_epoch)
    assert services.current_leader("orders", None, 7) is None
    assert services.current_leader("nothing", None, 0) is None
    partition = services.partitions.find("orders", 0)
    assert partition is not None
    # It is this very broker: that helps nobody who was refused here.
    assert services.leader_elsewhere(partition) is None


def test_where_clients_of_a_listener_find_brokers(broker: Broker) -> None:
    found = broker.services.endpoints_of([NODE_ID, 9, NODE_ID], "PLAINTEXT")
    assert found == [NodeEndpoint(NODE_ID, "registered.test", 9092, "r1")]
    assert broker.services.endpoints_of([NODE_ID], "INTERNAL") == []


class Followed:
    """A partition with one follower, which stands in another rack."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.services = broker.services
        self.services.settings = replace(self.services.settings, reads_from_followers=True)
        image = broker.metadata.image
        known = SimpleNamespace(
            image=replace(image, brokers={**image.brokers, FOLLOWER: broker_state(FOLLOWER, "r2")})
        )
        monkeypatch.setattr(self.services, "metadata", known)
        partition = self.services.partitions.find("orders", 0)
        assert partition is not None
        self.partition: Partition = partition
        self.lead(isr=(NODE_ID, FOLLOWER))

    def lead(self, isr: tuple[int, ...]) -> None:
        leadership = Leadership(NODE_ID, leader_epoch=0, epoch_start_offset=0, lag_ms_max=1_000, now_ms=0)
        leadership.update(replicas=(NODE_ID, FOLLOWER), isr=isr, partition_epoch=1, now_ms=0)
        self.partition.lead_replicas(leadership)
        (follower,) = leadership.followers
        follower.log_start_offset, follower.log_end_offset = 5, 10

    def replica_for(self, rack: str, offset: int) -> int:
        return self.services.read_replica(self.partition, rack, offset)


def test_a_reader_is_sent_to_a_follower_in_its_rack_that_has_what_it_asks_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(broker, monkeypatch)
    assert followed.replica_for("r2", 7) == FOLLOWER
    assert followed.replica_for("r2", 4) == -1
    assert followed.replica_for("r2", 11) == -1
    assert followed.replica_for("r1", 7) == -1
    assert followed.replica_for("r3", 7) == -1
    followed.lead(isr=(NODE_ID,))
    assert followed.replica_for("r2", 7) == -1


def test_readers_stay_with_the_leader_unless_it_is_set_otherwise(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(broker, monkeypatch)
    followed.services.settings = replace(followed.services.settings, reads_from_followers=False)
    assert followed.replica_for("r2", 7) == -1
