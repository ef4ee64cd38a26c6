"""What a tenant stores is what the leaders of its partitions have, wherever they are. Enough is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.tenant_storage import Sizes, TenantStorage
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.security.tenants import Tenant, TenantHeld, TenantLimits, TenantOverLimit, TenantTable, WhenFull
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, Broker
from tests.unit.broker.network.client import Client
from tests.unit.metadata.worlds import apply, cluster, new_topic

TENANT = Tenant(name="t", prefix="t.", limits=TenantLimits(stored_bytes=2_000))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def storage_of(broker: Broker) -> TenantStorage:
    return TenantStorage(
        lambda: broker.metadata.image,
        broker.services.partitions,
        node_id=NODE_ID,
        interval_s=lambda: 1.0,
    )


def produce(broker: Broker, topic: str) -> Any:
    records = bytes(build_batch([Record(0, NOW_MS, b"", bytes(500))]))
    part = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=-1, timeout_ms=100, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )

    async def work() -> Any:
        client = Client(broker.services)
        answers = [await client.ask(ApiKey.PRODUCE, 12, request) for _ in range(2)]
        return [answer.responses[0].partition_responses[0] for answer in answers][-1]

    return broker.run(work())


@pytest.mark.parametrize(
    "when_full, error, code",
    [
        (WhenFull.HOLD, TenantHeld, ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        (WhenFull.REJECT, TenantOverLimit, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_a_full_tenant_is_refused_until_something_was_deleted(
    broker: Broker, when_full: WhenFull, error: type[MillraceError], code: int
) -> None:
    storage = broker.services.tenant_storage = storage_of(broker)
    broker.run(broker.metadata.security.put_tenant(replace(TENANT, when_full=when_full), is_new=True))
    for name in ("t.a", "t.b", "other"):
        broker.create_topic(name)
    broker.run(storage.look())
    assert storage.stored == {"t": 0}
    assert produce(broker, "t.a").error_code == produce(broker, "t.b").error_code == 0
    broker.run(storage.look())
    assert storage.stored["t"] > 2_000
    assert isinstance(storage.refusal("t.a"), error)
    assert storage.refusal("other") is None
    refused = produce(broker, "t.a")
    assert refused.error_code == code, "also for one that was recognised before"
    assert "stores" in refused.error_message
    assert produce(broker, "other").error_code == 0
    broker.run(broker.metadata.delete_topics(["t.b"]))
    broker.run(storage.look())
    assert storage.refusal("t.a") is None
    assert produce(broker, "t.a").error_code == 0


def test_nothing_is_added_up_where_nobody_has_a_limit(broker: Broker) -> None:
    storage = storage_of(broker)
    broker.run(broker.metadata.security.put_tenant(replace(TENANT, limits=TenantLimits()), is_new=True))
    broker.create_topic("t.a")
    broker.run(storage.look())
    assert storage.stored == {}


def test_other_brokers_are_asked_and_believed_when_they_fall_silent(broker: Broker) -> None:
    image = apply(cluster("a", "b"), new_topic("t.a", 1, partitions=4))
    image = replace(image, security=replace(image.security, tenants=TenantTable({"t": TENANT})))
    asked: list[tuple[NodeId, Sequence[TopicPartition]]] = []
    is_silent = False

    async def ask(node_id: NodeId, partitions: Sequence[TopicPartition]) -> Sizes:
        asked.append((node_id, partitions))
        if is_silent:
            raise MillraceError("gone")
        return dict.fromkeys(partitions, 700)

    storage = TenantStorage(
        lambda: image, broker.services.partitions, node_id=NodeId(1), interval_s=lambda: 1.0, ask=ask
    )
    broker.run(storage.look())
    led = [partition for partition in image.topics["t.a"].partitions if partition.leader == 2]
    assert [(node_id, len(partitions)) for node_id, partitions in asked] == [(2, len(led))]
    assert storage.stored == {"t": 700 * len(led)}
    is_silent = True
    broker.run(storage.look())
    assert len(asked) == 2
    assert storage.stored == {"t": 700 * len(led)}
