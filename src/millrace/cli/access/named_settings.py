"""Roles and tenants over the wire, which are resources with settings: listed, shown and changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.cli.broker_requests import Connection, raise_for
from millrace.cli.clients import RequestFailed
from millrace.security.acls.roles import Role
from millrace.security.config_resources import (
    ADMINISTRATORS,
    LIMITS,
    MEMBERS,
    PREFIX,
    ROLE_TYPE,
    TENANT_TYPE,
    WHEN_FULL,
    split,
)
from millrace.security.tenants import Tenant, TenantLimits, WhenFull
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest

LIST_VERSION: Final = 1
"""The first that takes types of resources. Kafka 4.1 has it."""
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
_FLOAT_LIMITS: Final = ("request.percentage",)
_NOT_KNOWN: Final = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST)


class NoSuchKind(RequestFailed):
    """The cluster knows no roles or tenants: it is Apache Kafka, or older than they are."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one setting."""

    setting: str
    operation: int
    value: str | None


def names(broker: Connection, kind: int) -> list[str]:
    """Of all roles or all tenants; raises NoSuchKind where there are none by nature."""
    absent = NoSuchKind(f"this cluster has no {_word(kind)}s: it is not of Millrace, or older")
    # Asked first: a broker ends the connection of whoever asks for a version that it does not serve.
    if _newest(broker, ApiKey.LIST_CONFIG_RESOURCES) < LIST_VERSION:
        raise absent
    request = ListConfigResourcesRequest(resource_types=[kind])
    answer = broker.ask(ApiKey.LIST_CONFIG_RESOURCES, LIST_VERSION, request)
    if answer.error_code in _NOT_KNOWN:
        raise absent
    raise_for(answer.error_code, f"{_word(kind)}s")
    return sorted(each.resource_name for each in answer.config_resources if each.resource_type == kind)


def settings(broker: Connection, kind: int, wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of these roles or tenants, by name; those that are not set are left out."""
    if not wanted:
        return {}
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in wanted
        ]
    )
    found: dict[str, dict[str, str]] = {}
    for result in broker.ask(ApiKey.DESCRIBE_CONFIGS, 4, request).results:
        raise_for(result.error_code, f"{_word(kind)} {result.resource_name}", result.error_message)
        found[result.resource_name] = {
            config.name: config.value for config in result.configs if config.value is not None
        }
    return found


def change(broker: Connection, kind: int, name: str, changes: Sequence[Change]) -> None:
    """Make, change or remove one role or tenant, by all changes together."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=each.setting, config_operation=each.operation, value=each.value)
                    for each in changes
                ],
            )
        ]
    )
    for response in broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses:
        raise_for(response.error_code, f"{_word(kind)} {name}", response.error_message)


def read_roles(broker: Connection, wanted: Sequence[str] | None = None) -> list[Role]:
    """All roles, or those named."""
    chosen = names(broker, ROLE_TYPE) if wanted is None else wanted
    found = settings(broker, ROLE_TYPE, chosen)
    return [Role(name, split(found[name].get(MEMBERS, ""))) for name in chosen]


def read_tenants(broker: Connection, wanted: Sequence[str] | None = None) -> list[Tenant]:
    """All tenants, or those named."""
    chosen = names(broker, TENANT_TYPE) if wanted is None else wanted
    found = settings(broker, TENANT_TYPE, chosen)
    return [_tenant(name, found[name]) for name in chosen]


def require_absent(broker: Connection, kind: int, name: str) -> None:
    """A role or tenant that is to be made must not be there: setting its members would replace them."""
    if name in names(broker, kind):
        raise RequestFailed(f"{_word(kind)} {name} is there already")


def require_present(broker: Connection, kind: int, name: str) -> None:
    if name not in names(broker, kind):
        raise RequestFailed(f"there is no {_word(kind)} {name}")


def limits_of(values: Mapping[str, str]) -> TenantLimits:
    """The limits among the settings of a tenant."""
    given: dict[str, Any] = {
        field: float(values[name]) if name in _FLOAT_LIMITS else int(values[name])
        for name, field in LIMITS.items()
        if name in values
    }
    return TenantLimits(**given)


def _tenant(name: str, values: Mapping[str, str]) -> Tenant:
    return Tenant(
        name=name,
        prefix=values.get(PREFIX, ""),
        administrators=split(values.get(ADMINISTRATORS, "")),
        members=split(values.get(MEMBERS, "")),
        limits=limits_of(values),
        when_full=WhenFull(values.get(WHEN_FULL, WhenFull.HOLD)),
    )


def _newest(broker: Connection, api_key: ApiKey) -> int:
    request = ApiVersionsRequest(client_software_name="millrace-cli", client_software_version="1")
    answer = broker.ask(ApiKey.API_VERSIONS, 3, request)
    return max((each.max_version for each in answer.api_keys if each.api_key == api_key), default=-1)


def _word(kind: int) -> str:
    return "role" if kind == ROLE_TYPE else "tenant"
