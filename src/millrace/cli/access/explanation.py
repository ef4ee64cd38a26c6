"""The rules of a cluster about one resource, read over the wire: for `millrace acl explain`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.cli.access import named_settings, permissions
from millrace.cli.broker_requests import Connection, raise_for
from millrace.cli.clients import RequestFailed
from millrace.client.errors import ConnectionFailed
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import Operation, PatternType, ResourceType
from millrace.security.acls.explain import Explanation, explain
from millrace.security.acls.filters import AclFilter
from millrace.security.acls.index import AclIndex
from millrace.security.acls.roles import NO_ROLES, RoleTable
from millrace.security.principals import parse_principal
from millrace.security.tenants import Tenant
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.metadata import MetadataRequest

SUPER_USERS: Final = "super.users"
OPEN_WITHOUT_ACL: Final = "allow.everyone.if.no.acl.found"
_BROKER: Final = 4


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about one resource, with notes on what could not be read."""

    authorizer: Authorizer
    notes: tuple[str, ...]

    def explain(
        self,
        principal: str,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        host: str,
        groups: Iterable[str],
    ) -> Explanation:
        subject = self.authorizer.subject(parse_principal(principal), host, groups)
        return explain(self.authorizer, subject, operation, kind, name)


def read_rules(broker: Connection, kind: ResourceType, name: str) -> Rules:
    """Everything that may decide about this resource. Apache Kafka has no roles and no tenants."""
    notes: list[str] = []
    found = permissions.read(broker, AclFilter(kind, name, PatternType.MATCH))
    roles, tenants = _roles_and_tenants(broker, notes)
    values = _settings(broker)
    if SUPER_USERS not in values:
        notes.append(f"the broker does not tell its {SUPER_USERS}: they may do everything")
    return Rules(
        Authorizer(
            acls=AclIndex(found),
            tenant_acls=AclIndex(acl for tenant in tenants for acl in tenant.acls()),
            roles=roles,
            super_users=frozenset(part.strip() for part in values.get(SUPER_USERS, "").split(";") if part),
            is_open_without_acl=values.get(OPEN_WITHOUT_ACL, "false") == "true",
        ),
        tuple(notes),
    )


def _roles_and_tenants(broker: Connection, notes: list[str]) -> tuple[RoleTable, list[Tenant]]:
    try:
        return RoleTable(named_settings.read_roles(broker)), named_settings.read_tenants(broker)
    except named_settings.NoSuchKind:
        return NO_ROLES, []
    except RequestFailed as error:
        notes.append(f"roles and tenants are left out: {error}")
        return NO_ROLES, []


def _settings(broker: Connection) -> dict[str, str]:
    """The settings of the authorizer, as one broker has them."""
    metadata = broker.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[], allow_auto_topic_creation=False))
    if not metadata.brokers:
        raise ConnectionFailed("the cluster names no broker")
    resource = DescribeConfigsResource(
        resource_type=_BROKER,
        resource_name=str(metadata.brokers[0].node_id),
        configuration_keys=[SUPER_USERS, OPEN_WITHOUT_ACL],
    )
    answer = broker.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
    values: dict[str, str] = {}
    for result in answer.results:
        raise_for(result.error_code, "the settings of the authorizer", result.error_message)
        values |= {config.name: config.value for config in result.configs if config.value is not None}
    return values
