"""What clients are limited by follows the metadata and the settings, in the same step."""

from __future__ import annotations

from pathlib import Path

from millrace.broker.assembly.quotas import follow_quotas
from millrace.broker.config.config import load
from millrace.broker.config.live import LiveConfig
from millrace.core.ids import NodeId
from millrace.metadata.image import BrokerState, Endpoint
from millrace.security.quotas.entities import entity
from millrace.security.quotas.keys import Alteration
from millrace.security.quotas.precedence import NO_QUOTAS
from millrace.security.tenants import Tenant, TenantLimits
from tests.unit.broker.handlers.broker import Broker

IN = "producer_byte_rate"


def test_limits_and_tenants_count_before_their_change_is_answered(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.start()
    try:
        throttling = follow_quotas(LiveConfig(load(None, {}, {})), broker.metadata)
        assert throttling.table is NO_QUOTAS
        security = broker.metadata.security
        assert broker.run(security.alter_quotas([([("user", "me")], [Alteration(IN, 1_000.0)])])) == [None]
        assert throttling.is_active
        assert throttling.table.of(entity(user="me")) == {IN: 1_000.0}
        kept = throttling.table
        broker.create_topic("unrelated")
        assert throttling.table is kept
        tenant = Tenant(name="t", prefix="t.", members=("User:x",), limits=TenantLimits(bytes_in_per_s=5))
        broker.run(security.put_tenant(tenant, is_new=True))
        assert throttling.tenants.table.tenants["t"] == tenant
        assert throttling.table.of(entity(tenant="t")) == {IN: 5.0}
        broker.run(security.delete_tenant("t"))
        assert broker.run(security.alter_quotas([([("user", "me")], [Alteration(IN, None)])])) == [None]
        assert not throttling.is_active
    finally:
        broker.stop()


def test_a_limit_for_the_cluster_is_divided_by_the_brokers_that_are_there(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.start()
    try:
        live = LiveConfig(load(None, {"quota.scope": "cluster"}, {}))
        throttling = follow_quotas(live, broker.metadata)
        broker.run(broker.metadata.security.alter_quotas([([("user", "me")], [Alteration(IN, 900.0)])]))

        def bound() -> float:
            meter = throttling.meter(IN, "me", "", 0)
            assert meter is not None
            return meter.bound

        assert bound() == 900
        endpoint = Endpoint("PLAINTEXT", "other.test", 9092, "PLAINTEXT")
        other = BrokerState(node_id=NodeId(2), incarnation="first", rack=None, endpoints=(endpoint,))
        broker.run(broker.metadata.register_broker(other))
        assert bound() == 450
        live.replace(load(None, {"quota.scope": "broker"}, {}))
        assert bound() == 900
    finally:
        broker.stop()
