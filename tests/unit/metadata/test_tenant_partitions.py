"""A tenant has no more partitions than it may have, however they come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.metadata.commands import CreatePartitions
from millrace.metadata.errors import TenantPartitionsExceeded
from millrace.metadata.image import Image
from millrace.metadata.tenant_partitions import partitions_of
from millrace.security.tenants import Tenant, TenantLimits, TenantTable
from tests.unit.metadata.worlds import apply, cluster, new_topic

TENANT = Tenant(name="t", prefix="t.", limits=TenantLimits(partitions=5))


def with_tenant(tenant: Tenant = TENANT) -> Image:
    image = cluster(None)
    return replace(image, security=replace(image.security, tenants=TenantTable({"t": tenant})))


def test_topics_of_a_tenant_count_together() -> None:
    image = apply(with_tenant(), new_topic("t.a", 1, partitions=3))
    image = apply(image, new_topic("other", 2, partitions=9))
    with pytest.raises(TenantPartitionsExceeded, match="3 partitions and may have 5: 3 more"):
        apply(image, new_topic("t.b", 3, partitions=3))
    image = apply(image, new_topic("t.b", 3, partitions=2))
    assert partitions_of(image, TENANT) == 5
    with pytest.raises(TenantPartitionsExceeded):
        apply(image, CreatePartitions(name="t.b", count=3))
    assert len(apply(image, CreatePartitions(name="other", count=20)).topics["other"].partitions) == 20


def test_without_a_limit_there_may_be_any_number() -> None:
    image = with_tenant(replace(TENANT, limits=TenantLimits()))
    assert len(apply(image, new_topic("t.a", 1, partitions=50)).topics["t.a"].partitions) == 50
