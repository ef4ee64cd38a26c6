"""Roles and tenants as resources with settings: who may see and change them, and how they are shown.

Who may set permissions (Alter on the cluster) changes all of them: a role given away is permissions given
away, so that the right to alter settings is not enough. A tenant's administrators see their tenant, take
users into it whose names begin with its prefix, and let any member go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.broker.network.context import RequestContext
from millrace.metadata.commands import Alteration, AlterOperation
from millrace.metadata.config_definitions.model import ConfigSource, ConfigType
from millrace.metadata.errors import UnknownRole, UnknownTenant
from millrace.metadata.security.commands import AlterRole, AlterTenant
from millrace.metadata.security.config_alterations import LIMIT_TYPES, described_role, described_tenant
from millrace.security.acls.binding import Operation
from millrace.security.config_resources import MEMBERS, ROLE_TYPE, TENANT_TYPE, split
from millrace.security.errors import NotAllowedOnCluster
from millrace.security.tenants import Tenant
from millrace.wire.messages.describe_configs import DescribeConfigsResourceResult

TYPES: Final = (ROLE_TYPE, TENANT_TYPE)


def alter(
    ctx: RequestContext, resource_type: int, name: str, alterations: Sequence[Alteration]
) -> AlterRole | AlterTenant:
    """The command that makes these changes; raises NotAllowedOnCluster."""
    if not ctx.decisions.allows_on_cluster(Operation.ALTER):
        tenant = _own_tenants(ctx).get(name)
        is_about_members = bool(alterations) and all(each.name == MEMBERS for each in alterations)
        if resource_type == ROLE_TYPE or tenant is None or not is_about_members:
            raise NotAllowedOnCluster
        if not all(tenant.has(member) or tenant.may_take(member) for member in _named(alterations)):
            raise NotAllowedOnCluster
    return AlterRole(name, alterations) if resource_type == ROLE_TYPE else AlterTenant(name, alterations)


def describe(
    ctx: RequestContext, resource_type: int, name: str, names: Sequence[str] | None
) -> list[DescribeConfigsResourceResult]:
    """The settings of a role or a tenant; raises NotAllowedOnCluster, UnknownRole, UnknownTenant."""
    is_own = resource_type == TENANT_TYPE and name in _own_tenants(ctx)
    if not is_own and not ctx.decisions.allows_on_cluster(Operation.DESCRIBE_CONFIGS):
        raise NotAllowedOnCluster
    return [
        DescribeConfigsResourceResult(
            name=setting,
            value=value,
            config_source=(
                ConfigSource.DEFAULT_CONFIG if value is None else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            ),
            config_type=LIMIT_TYPES.get(setting, ConfigType.STRING),
        )
        for setting, value in _settings(ctx, resource_type, name).items()
        if names is None or setting in names
    ]


def listed(ctx: RequestContext, resource_type: int) -> list[str]:
    """The names of all roles or all tenants that somebody may see."""
    security = ctx.services.metadata.image.security
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE_CONFIGS):
        return sorted(_own_tenants(ctx)) if resource_type == TENANT_TYPE else []
    return sorted(security.roles.roles if resource_type == ROLE_TYPE else security.tenants.tenants)


def may_list(ctx: RequestContext, resource_types: Sequence[int]) -> bool:
    """Whether somebody may list resources of these types because they administer a tenant."""
    return bool(resource_types) and set(resource_types) == {TENANT_TYPE} and bool(_own_tenants(ctx))


def _settings(ctx: RequestContext, resource_type: int, name: str) -> Mapping[str, str | None]:
    security = ctx.services.metadata.image.security
    if resource_type == ROLE_TYPE:
        role = security.roles.roles.get(name)
        if role is None:
            raise UnknownRole(name)
        return described_role(role)
    tenant = security.tenants.tenants.get(name)
    if tenant is None:
        raise UnknownTenant(name)
    return described_tenant(tenant)


def _named(alterations: Sequence[Alteration]) -> list[str]:
    """The principals who are there after the alterations, as far as these name them."""
    return [
        principal
        for _, operation, value in alterations
        if operation in (AlterOperation.SET, AlterOperation.APPEND)
        for principal in split(value or "")
    ]


def _own_tenants(ctx: RequestContext) -> dict[str, Tenant]:
    """The tenants that somebody administers, by name."""
    subject = ctx.decisions.subject
    if subject is None:
        return {}
    administered = ctx.services.metadata.image.security.tenants.administered_by(subject.principals)
    return {tenant.name: tenant for tenant in administered}
