"""Roles and tenants over the config APIs: made, shown, listed, removed, by those who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.security.acls.binding import CLUSTER_NAME, Operation, ResourceType
from millrace.security.acls.roles import Role
from millrace.security.config_resources import ROLE_TYPE, TENANT_TYPE
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_configs as full
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.unit.broker.handlers.broker import RESTRICTED, Broker
from tests.unit.security.acls.models import acl

SET, DELETE, APPEND, SUBTRACT = range(4)
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ADMIN = "admin"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", RESTRICTED)
    broker.start()
    yield broker
    broker.stop()


def alter(
    broker: Broker,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    who: str = ADMIN,
    validate_only: bool = False,
) -> int:
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = broker.ask(request, 1, as_user=who).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert bool(result.error_message) == bool(result.error_code)
    return int(result.error_code)


def describe(
    broker: Broker, kind: int, name: str, *, who: str = ADMIN, keys: list[str] | None = None
) -> dict[str, str | None] | int:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = broker.ask(DescribeConfigsRequest(resources=[resource]), 4, as_user=who).results
    if result.error_code:
        assert result.configs == []
        return int(result.error_code)
    return {config.name: config.value for config in result.configs}


def names(broker: Broker, *kinds: int, who: str = ADMIN) -> list[tuple[int, str]] | int:
    response = broker.ask(ListConfigResourcesRequest(resource_types=list(kinds)), 1, as_user=who)
    if response.error_code:
        return int(response.error_code)
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_a_role_is_made_changed_shown_and_removed(guarded: Broker) -> None:
    assert alter(guarded, ROLE_TYPE, "ops", ("members", SET, "User:a;User:b")) == 0
    assert describe(guarded, ROLE_TYPE, "ops") == {"members": "User:a;User:b"}
    assert alter(guarded, ROLE_TYPE, "ops", ("members", APPEND, "Group:g")) == 0
    assert alter(guarded, ROLE_TYPE, "ops", ("members", SUBTRACT, "User:a")) == 0
    assert guarded.metadata.image.security.roles.roles["ops"] == Role("ops", ("User:b", "Group:g"))
    assert names(guarded, ROLE_TYPE) == [(ROLE_TYPE, "ops")]
    assert alter(guarded, ROLE_TYPE, "ops", ("members", DELETE, None)) == 0
    assert describe(guarded, ROLE_TYPE, "ops") == ErrorCode.RESOURCE_NOT_FOUND
    assert names(guarded, ROLE_TYPE) == []


def test_a_role_counts_at_once(guarded: Broker) -> None:
    guarded.allow(
        acl(CLUSTER_NAME, Operation.DESCRIBE_CONFIGS, "Role:viewers", resource_type=ResourceType.CLUSTER)
    )
    assert names(guarded, ROLE_TYPE, who="a") == REFUSED
    assert alter(guarded, ROLE_TYPE, "viewers", ("members", SET, "User:a")) == 0
    assert names(guarded, ROLE_TYPE, who="a") == [(ROLE_TYPE, "viewers")]


def test_a_tenant_is_made_changed_shown_and_removed(guarded: Broker) -> None:
    made = alter(guarded, TENANT_TYPE, "team", ("prefix", SET, "team."), ("partitions.max", SET, "10"))
    assert made == 0
    assert alter(guarded, TENANT_TYPE, "team", ("members", APPEND, "User:dev")) == 0
    assert describe(guarded, TENANT_TYPE, "team", keys=["prefix", "members", "partitions.max"]) == {
        "prefix": "team.",
        "members": "User:dev",
        "partitions.max": "10",
    }
    assert guarded.metadata.image.security.tenants.tenants["team"].limits.partitions == 10
    assert names(guarded, TENANT_TYPE) == [(TENANT_TYPE, "team")]
    assert alter(guarded, TENANT_TYPE, "team", ("prefix", DELETE, None)) == 0
    assert describe(guarded, TENANT_TYPE, "team") == ErrorCode.RESOURCE_NOT_FOUND


def test_what_cannot_be_is_refused_and_changes_nothing(guarded: Broker) -> None:
    assert alter(guarded, ROLE_TYPE, "ops", ("members", APPEND, "User:a")) == ErrorCode.RESOURCE_NOT_FOUND
    assert alter(guarded, ROLE_TYPE, "ops", ("members", SET, "Role:x")) == ErrorCode.INVALID_REQUEST
    assert alter(guarded, ROLE_TYPE, "", ("members", SET, "User:a")) == ErrorCode.INVALID_REQUEST
    assert alter(guarded, ROLE_TYPE, "ops", ("member", SET, "User:a")) == ErrorCode.INVALID_CONFIG
    assert alter(guarded, ROLE_TYPE, "ops", ("members", 9, "User:a")) == ErrorCode.INVALID_REQUEST
    assert alter(guarded, TENANT_TYPE, "t", ("members", SET, "User:a")) == ErrorCode.RESOURCE_NOT_FOUND
    assert alter(guarded, TENANT_TYPE, "t", ("prefix", SET, "__x")) == ErrorCode.INVALID_REQUEST
    assert alter(guarded, TENANT_TYPE, "t", ("prefix", SET, "a."), ("partitions.max", SET, "0")) != 0
    assert names(guarded, ROLE_TYPE, TENANT_TYPE) == []


def test_a_trial_changes_nothing(guarded: Broker) -> None:
    assert alter(guarded, ROLE_TYPE, "ops", ("members", SET, "User:a"), validate_only=True) == 0
    tried = alter(guarded, ROLE_TYPE, "ops", ("members", SET, "a"), validate_only=True)
    assert tried == ErrorCode.INVALID_REQUEST
    assert names(guarded, ROLE_TYPE) == []


def test_changes_of_roles_and_topics_go_together_in_one_request(guarded: Broker) -> None:
    guarded.create_topic("orders")
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=setting, config_operation=SET, value=value)],
            )
            for kind, name, setting, value in (
                (ROLE_TYPE, "ops", "members", "User:a"),
                (2, "orders", "retention.ms", "1000"),
                (ROLE_TYPE, "bad", "members", "nobody"),
            )
        ]
    )
    results = guarded.ask(request, 1, as_user=ADMIN).responses
    assert [result.error_code for result in results] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert guarded.metadata.image.topics["orders"].configs["retention.ms"] == "1000"
    assert names(guarded, ROLE_TYPE) == [(ROLE_TYPE, "ops")]


def test_tools_made_for_kafka_see_neither_unless_they_ask(guarded: Broker) -> None:
    alter(guarded, ROLE_TYPE, "ops", ("members", SET, "User:a"))
    alter(guarded, TENANT_TYPE, "team", ("prefix", SET, "team."))
    found = names(guarded)
    assert isinstance(found, list)
    assert {kind for kind, _ in found}.isdisjoint({ROLE_TYPE, TENANT_TYPE})
    assert names(guarded, 102) == ErrorCode.UNSUPPORTED_VERSION


def test_the_older_request_changes_neither(guarded: Broker) -> None:
    alter(guarded, ROLE_TYPE, "ops", ("members", SET, "User:a"))
    resource = full.AlterConfigsResource(
        resource_type=ROLE_TYPE,
        resource_name="ops",
        configs=[full.AlterableConfig(name="members", value="User:b")],
    )
    (result,) = guarded.ask(full.AlterConfigsRequest(resources=[resource]), 2, as_user=ADMIN).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert describe(guarded, ROLE_TYPE, "ops") == {"members": "User:a"}


def test_who_may_not_learns_and_changes_nothing(guarded: Broker) -> None:
    alter(guarded, ROLE_TYPE, "ops", ("members", SET, "User:a"))
    for kind in (ROLE_TYPE, TENANT_TYPE):
        # Whether there is such a one is not told either.
        for name in ("ops", "other"):
            assert describe(guarded, kind, name, who="a") == REFUSED
            assert alter(guarded, kind, name, ("members", SET, "User:a"), who="a") == REFUSED
        assert names(guarded, kind, who="a") == REFUSED


def test_the_right_to_alter_settings_gives_nobody_a_role(guarded: Broker) -> None:
    """Or whoever may change a broker's settings would soon be allowed everything."""
    assert alter(guarded, ROLE_TYPE, "owners", ("members", SET, "User:boss")) == 0
    rights = acl(CLUSTER_NAME, Operation.ALTER_CONFIGS, "User:operator", resource_type=ResourceType.CLUSTER)
    guarded.allow(rights)
    assert (
        alter(guarded, ROLE_TYPE, "owners", ("members", APPEND, "User:operator"), who="operator") == REFUSED
    )
    assert alter(guarded, TENANT_TYPE, "t", ("prefix", SET, "t-"), who="operator") == REFUSED
    guarded.allow(rights._replace(operation=Operation.ALTER))
    assert alter(guarded, ROLE_TYPE, "owners", ("members", APPEND, "User:operator"), who="operator") == 0


def test_administrators_of_a_tenant_see_it_and_change_its_members_alone(guarded: Broker) -> None:
    for name, boss in (("team", "User:boss"), ("crew", "User:other")):
        changes = (
            ("prefix", SET, f"{name}."),
            ("administrators", SET, boss),
            ("members", SET, f"User:{name}"),
        )
        assert alter(guarded, TENANT_TYPE, name, *changes) == 0
    assert names(guarded, TENANT_TYPE, who="boss") == [(TENANT_TYPE, "team")]
    assert names(guarded, TENANT_TYPE, ROLE_TYPE, who="boss") == REFUSED
    assert alter(guarded, TENANT_TYPE, "team", ("members", APPEND, "User:team.dev"), who="boss") == 0
    shown = describe(guarded, TENANT_TYPE, "team", who="boss")
    assert isinstance(shown, dict)
    assert shown["members"] == "User:team;User:team.dev"
    for setting, value in (("partitions.max", "5"), ("administrators", "User:dev"), ("prefix", "x.")):
        assert alter(guarded, TENANT_TYPE, "team", (setting, SET, value), who="boss") == REFUSED
    both = (("members", SET, "User:x"), ("partitions.max", SET, "5"))
    assert alter(guarded, TENANT_TYPE, "team", *both, who="boss") == REFUSED
    assert alter(guarded, TENANT_TYPE, "team", ("prefix", DELETE, None), who="boss") == REFUSED
    # Nor anything of another tenant, or as a mere member.
    assert describe(guarded, TENANT_TYPE, "crew", who="boss") == REFUSED
    assert alter(guarded, TENANT_TYPE, "crew", ("members", SET, "User:x"), who="boss") == REFUSED
    assert describe(guarded, TENANT_TYPE, "team", who="team.dev") == REFUSED
    # Nobody is taken from another tenant.
    assert alter(guarded, TENANT_TYPE, "team", ("members", APPEND, "User:crew")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("operation", [SET, APPEND])
@pytest.mark.parametrize(
    "taken", ["User:admin", "User:stranger", "User:tea", "Group:team.", "Role:team.x", "User:ANONYMOUS"]
)
def test_administrators_of_a_tenant_take_nobody_whose_name_is_not_the_tenants(
    guarded: Broker, operation: int, taken: str
) -> None:
    """Or they would hold a stranger's traffic to the limits of their tenant, and could shut them out."""
    changes = (
        ("prefix", SET, "team."),
        ("administrators", SET, "User:boss"),
        ("members", SET, "User:a;User:b"),
    )
    assert alter(guarded, TENANT_TYPE, "team", *changes) == 0
    more = f"User:team.new;{taken}"
    assert alter(guarded, TENANT_TYPE, "team", ("members", operation, more), who="boss") == REFUSED
    # Who is there already may stay or go.
    assert alter(guarded, TENANT_TYPE, "team", ("members", SET, "User:a;User:team.new"), who="boss") == 0
    assert alter(guarded, TENANT_TYPE, "team", ("members", SUBTRACT, "User:a"), who="boss") == 0
    assert guarded.metadata.image.security.tenants.tenants["team"].members == ("User:team.new",)
    assert alter(guarded, TENANT_TYPE, "team", ("members", APPEND, "User:a"), who="boss") == REFUSED


def test_the_settings_of_all_topics_are_not_those_of_the_audit(guarded: Broker) -> None:
    """Who may alter topics shall not shorten for how long it is kept what they did."""
    guarded.create_topic("__audit")
    guarded.create_topic("orders")
    guarded.allow(acl("*", Operation.ALTER_CONFIGS, "User:clerk"))
    change = ("retention.ms", SET, "1")
    assert alter(guarded, 2, "orders", change, who="clerk") == 0
    assert alter(guarded, 2, "__audit", change, who="clerk") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    guarded.allow(
        acl(CLUSTER_NAME, Operation.ALTER_CONFIGS, "User:clerk", resource_type=ResourceType.CLUSTER)
    )
    assert alter(guarded, 2, "__audit", change, who="clerk") == 0
