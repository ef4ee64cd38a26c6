"""Quotas and tenants as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.network.throttling import Whom
from millrace.broker.tenant_storage import TenantStorage
from millrace.broker.watching.quota_metrics import quota_families, quota_figures
from millrace.security.quotas.entities import entity
from millrace.security.quotas.precedence import QuotaTable
from millrace.security.tenants import Tenant, TenantLimits
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, Broker

IN = "producer_byte_rate"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def samples(broker: Broker) -> dict[tuple[str, ...], float]:
    server: Any = SimpleNamespace(
        ticks=lambda: 10.0, admission=SimpleNamespace(waiting_count=3, throttled={"waited": 4})
    )
    figures = quota_figures(server, broker.services)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in quota_families(figures)
        for sample in family.samples
    }


def test_rates_throttle_times_and_connections(broker: Broker) -> None:
    throttling = broker.services.throttling
    throttling.replace(QuotaTable([(entity(user="me"), {IN: 100.0})]))
    meter = throttling.meter(IN, "me", "a", 10_000)
    assert meter is not None
    meter.record(500, 10_000)
    throttling.count(Whom(IN, "me", "a"), 1_500)
    throttling.muted_count = 2
    found = samples(broker)
    assert found["millrace_quota_throttles_total", IN, "me", "a"] == 1
    assert found["millrace_quota_throttle_seconds_total", IN, "me", "a"] == 1.5
    assert found["millrace_quota_rate", IN, "me", "", ""] == 50
    assert found["millrace_quota_bound", IN, "me", "", ""] == 100
    assert found["millrace_connections_muted",] == 2
    assert found["millrace_connections_waiting",] == 3
    assert found["millrace_connections_throttled_total", "waited"] == 4
    assert not [key for key in found if key[0].startswith("millrace_tenant")]


def test_what_tenants_use(broker: Broker) -> None:
    services = broker.services
    for name, limits in (("t", TenantLimits(stored_bytes=10**6)), ("u", TenantLimits())):
        broker.run(
            broker.metadata.security.put_tenant(
                Tenant(name=name, prefix=f"{name}.", limits=limits), is_new=True
            )
        )
    broker.create_topic("t.a", 3)
    broker.append("t.a", NOW_MS)
    storage = TenantStorage(
        lambda: broker.metadata.image, services.partitions, node_id=NODE_ID, interval_s=lambda: 1.0
    )
    services.tenant_storage = storage
    broker.run(storage.look())
    services.throttling.tenants.counts["t"] = 5
    services.throttling.tenants.refused["t"] = 1
    found = samples(broker)
    assert found["millrace_tenant_connections", "t"] == 5
    assert found["millrace_tenant_connections_refused_total", "t"] == 1
    assert found["millrace_tenant_partitions", "t"] == 3
    assert found["millrace_tenant_stored_bytes", "t"] > 50
    assert found["millrace_tenant_bytes_in_total", "t"] > 50
    assert found["millrace_tenant_bytes_out_total", "t"] == 0
    assert found["millrace_tenant_partitions", "u"] == 0
    assert ("millrace_tenant_stored_bytes", "u") not in found
