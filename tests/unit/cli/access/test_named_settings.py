"""Roles and tenants as resources with settings."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.access import named_settings
from millrace.cli.access.named_settings import SET, Change, NoSuchKind, limits_of
from millrace.cli.clients import RequestFailed
from millrace.security.acls.roles import Role
from millrace.security.config_resources import PREFIX, ROLE_TYPE, TENANT_TYPE
from millrace.security.tenants import TenantLimits, WhenFull
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster


def test_every_setting_of_a_tenant_is_read(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    cluster.named[TENANT_TYPE, "acme"] = {
        "prefix": "acme.",
        "administrators": "User:CN=a,OU=b;User:c",
        "members": "Role:r",
        "when.full": "reject",
        "request.percentage": "12.5",
        "partitions.max": "10",
    }
    (tenant,) = named_settings.read_tenants(broker)
    assert tenant.administrators == ("User:CN=a,OU=b", "User:c")
    assert (tenant.prefix, tenant.members) == ("acme.", ("Role:r",))
    assert tenant.when_full is WhenFull.REJECT
    assert tenant.limits == TenantLimits(request_percentage=12.5, partitions=10)


def test_nothing_is_asked_about_nobody(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    assert named_settings.settings(broker, ROLE_TYPE, []) == {}
    assert cluster.broker.asked == []
    assert named_settings.read_roles(broker) == []


def test_a_role_without_members_is_a_role(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    cluster.named[ROLE_TYPE, "empty"] = {}
    assert named_settings.read_roles(broker) == [Role("empty", ())]


def test_a_broker_that_does_not_know_the_type_says_so(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    cluster.refused = ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(NoSuchKind):
        named_settings.names(broker, TENANT_TYPE)
    cluster.refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(RequestFailed, match=r"^tenants: .*CLUSTER_AUTHORIZATION_FAILED") as refused:
        named_settings.names(broker, TENANT_TYPE)
    assert not isinstance(refused.value, NoSuchKind)


def test_a_refused_change_is_told_in_the_brokers_words(cluster: FakeCluster) -> None:
    broker: Any = cluster.broker
    twice = [Change(PREFIX, SET, "a"), Change(PREFIX, SET, "b")]
    with pytest.raises(RequestFailed, match=r"^tenant acme: one change for each \(INVALID_REQUEST\)$"):
        named_settings.change(broker, TENANT_TYPE, "acme", twice)


def test_limits_are_numbers() -> None:
    assert limits_of({"bytes.in.per.second": "5", "prefix": "x"}) == TenantLimits(bytes_in_per_s=5)
