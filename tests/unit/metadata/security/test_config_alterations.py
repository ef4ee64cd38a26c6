"""Roles and tenants by their settings: what makes, changes and removes one, and what makes no sense."""

from __future__ import annotations

import pytest

from millrace.metadata.commands import Alteration, AlterOperation
from millrace.metadata.errors import (
    ContradictoryRequest,
    InvalidConfig,
    MetadataError,
    UnknownRole,
    UnknownTenant,
)
from millrace.metadata.security.config_alterations import (
    altered_role,
    altered_tenant,
    described_role,
    described_tenant,
)
from millrace.security.acls.roles import Role
from millrace.security.config_resources import LIMITS, TENANT_SETTINGS
from millrace.security.tenants import Tenant, TenantLimits, WhenFull

SET, DELETE, APPEND, SUBTRACT = AlterOperation
OPS = Role("ops", ("User:a", "User:b"))
TEAM = Tenant(name="team", prefix="team.", administrators=("User:boss",), members=("User:dev",))


def members(operation: AlterOperation, value: str | None = None) -> list[Alteration]:
    return [Alteration("members", operation, value)]


def change(name: str, value: str | None = None, operation: AlterOperation = SET) -> Alteration:
    return Alteration(name, DELETE if value is None and operation is SET else operation, value)


def test_members_of_a_role_are_set_added_and_taken_away() -> None:
    assert altered_role("ops", None, members(SET, "User:a;User:b")) == OPS
    assert altered_role("ops", None, members(SET, "")) == Role("ops", ())
    assert altered_role("ops", OPS, members(SET, "Group:g")) == Role("ops", ("Group:g",))
    added = altered_role("ops", OPS, members(APPEND, "User:c;User:a"))
    assert added == Role("ops", ("User:a", "User:b", "User:c"))
    assert altered_role("ops", OPS, members(SUBTRACT, "User:a;User:nobody")) == Role("ops", ("User:b",))
    assert altered_role("ops", OPS, members(DELETE)) is None
    assert altered_role("ops", OPS, []) == OPS


@pytest.mark.parametrize(
    "alterations", [[], members(APPEND, "User:a"), members(SUBTRACT, "User:a"), members(DELETE)]
)
def test_a_role_that_is_not_there_is_made_by_setting_alone(alterations: list[Alteration]) -> None:
    with pytest.raises(UnknownRole):
        altered_role("ops", None, alterations)


@pytest.mark.parametrize(
    "alterations, kind",
    [
        ([*members(APPEND, "User:a"), *members(SUBTRACT, "User:b")], ContradictoryRequest),
        (members(SET, None), ContradictoryRequest),
        (members(APPEND, None), ContradictoryRequest),
        (members(APPEND, "User:b;User:a\\"), ContradictoryRequest),
        (members(SET, "User:a\\"), ContradictoryRequest),
        ([change("prefix", "x")], InvalidConfig),
        ([change("member", "x")], InvalidConfig),
    ],
)
def test_changes_of_a_role_that_make_no_sense(
    alterations: list[Alteration], kind: type[MetadataError]
) -> None:
    with pytest.raises(kind):
        altered_role("ops", OPS, alterations)


def test_a_tenant_is_made_by_its_prefix_with_all_that_is_set_beside_it() -> None:
    made = altered_tenant(
        "team",
        None,
        [
            change("bytes.in.per.second", "1000"),
            change("request.percentage", "12.5"),
            change("administrators", "User:boss"),
            change("prefix", "team."),
            change("when.full", "reject"),
            change("members", "User:dev;User:CN=x,O=y", APPEND),
        ],
    )
    assert made == Tenant(
        name="team",
        prefix="team.",
        administrators=("User:boss",),
        members=("User:dev", "User:CN=x,O=y"),
        limits=TenantLimits(bytes_in_per_s=1000, request_percentage=12.5),
        when_full=WhenFull.REJECT,
    )
    assert made is not None
    settings = described_tenant(made)
    assert tuple(settings) == TENANT_SETTINGS
    assert settings["bytes.in.per.second"] == "1000"
    assert settings["partitions.max"] is None
    # What is shown can be set again.
    again = [change(name, value) for name, value in settings.items() if value is not None]
    assert altered_tenant("team", None, again) == made


@pytest.mark.parametrize("name", list(LIMITS))
def test_limits_come_and_go(name: str) -> None:
    limited = altered_tenant("team", TEAM, [change(name, "7")])
    assert limited is not None
    assert getattr(limited.limits, LIMITS[name]) == 7
    assert altered_tenant("team", limited, [change(name)]) == TEAM


def test_settings_of_a_tenant_go_back_to_what_they_are_without() -> None:
    changed = altered_tenant("team", TEAM, [change("members"), change("when.full", "reject")])
    assert changed is not None
    assert (changed.members, changed.when_full) == ((), WhenFull.REJECT)
    assert altered_tenant("team", changed, [change("when.full"), change("members", "User:dev")]) == TEAM
    assert altered_tenant("team", TEAM, [change("prefix")]) is None
    moved = altered_tenant("team", TEAM, [change("prefix", "crew.")])
    assert moved is not None
    assert moved.prefix == "crew."


@pytest.mark.parametrize("alterations", [[], [change("members", "User:a")], [change("prefix")]])
def test_a_tenant_that_is_not_there_is_made_by_its_prefix_alone(alterations: list[Alteration]) -> None:
    with pytest.raises(UnknownTenant):
        altered_tenant("team", None, alterations)


@pytest.mark.parametrize(
    "alterations, kind",
    [
        ([change("prefix"), change("members", "User:a")], ContradictoryRequest),
        ([change("members", "a:b"), change("members", "a:c")], ContradictoryRequest),
        ([Alteration("prefix", SET, None)], ContradictoryRequest),
        ([change("prefix", "x", APPEND)], InvalidConfig),
        ([change("partitions.max", "5", SUBTRACT)], InvalidConfig),
        ([change("partitions.max", "many")], InvalidConfig),
        ([change("partitions.max", "1.5")], InvalidConfig),
        ([change("partitions.max", "0")], InvalidConfig),
        ([change("request.percentage", "inf")], InvalidConfig),
        ([change("when.full", "burn")], InvalidConfig),
        ([change("limits", "5")], InvalidConfig),
    ],
)
def test_changes_of_a_tenant_that_make_no_sense(
    alterations: list[Alteration], kind: type[MetadataError]
) -> None:
    with pytest.raises(kind):
        altered_tenant("team", TEAM, alterations)


def test_a_role_is_shown_by_its_members() -> None:
    assert described_role(OPS) == {"members": "User:a;User:b"}
