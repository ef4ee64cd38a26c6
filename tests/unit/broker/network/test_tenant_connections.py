"""Connections count for the tenant of those who they are, as long as they are."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.network.tenant_connections import TenantConnections
from millrace.security.tenants import Tenant, TenantLimits, TenantOverLimit, TenantTable


def tenants(**limits: int | None) -> TenantTable:
    found = {}
    for name, limit in limits.items():
        allowed = TenantLimits(connections=limit)
        found[name] = Tenant(name=name, prefix=f"{name}.", members=(f"User:{name}",), limits=allowed)
    return TenantTable(found)


def test_each_tenant_has_its_own_number() -> None:
    connections = TenantConnections()
    connections.table = tenants(a=2, b=None)
    many: list[Any] = [object() for _ in range(6)]
    assert connections.enter(many[0], ("User:a",)) == "a"
    assert connections.enter(many[1], ("User:x", "User:a")) == "a"
    assert connections.enter(many[0], ("User:a",)) == "a", "it is counted once"
    with pytest.raises(TenantOverLimit):
        connections.enter(many[2], ("User:a",))
    assert connections.enter(many[3], ("User:b",)) == "b"
    assert connections.enter(many[4], ("User:nobody",)) is None
    assert connections.counts == {"a": 2, "b": 1}
    assert connections.refused == {"a": 1}
    assert connections.enter(many[0], ("User:b",)) == "b", "it is somebody else now"
    assert connections.enter(many[2], ("User:a",)) == "a", "so there is room"
    for each in many:
        connections.leave(each)
    assert connections.counts == {}


def test_who_is_in_stays_when_less_is_allowed() -> None:
    connections = TenantConnections()
    connections.table = tenants(a=2)
    one: Any = object()
    connections.enter(one, ("User:a",))
    connections.table = tenants(a=1)
    assert connections.enter(one, ("User:a",)) == "a"
