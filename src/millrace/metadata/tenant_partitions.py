"""How many partitions a tenant may have: checked where topics are created and made larger, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.metadata.errors import TenantPartitionsExceeded
from millrace.security.tenants import Tenant, TenantOverLimit

if TYPE_CHECKING:
    from millrace.metadata.image import Image


def partitions_of(image: Image, tenant: Tenant) -> int:
    """How many partitions all topics of a tenant have together."""
    return sum(len(topic.partitions) for name, topic in image.topics.items() if tenant.owns(name))


def check_tenant_partitions(image: Image, topic: str, added: int) -> None:
    """Whether a topic may get so many partitions more; raises TenantPartitionsExceeded.

    Two brokers that decide at the same moment may each let the last ones pass."""
    tenant = image.security.tenants.owner_of(topic)
    if tenant is None or tenant.limits.partitions is None:
        return
    try:
        tenant.check_partitions(present=partitions_of(image, tenant), added=added)
    except TenantOverLimit as error:
        raise TenantPartitionsExceeded(str(error)) from error
