"""What a permission may be, with Kafka's numbers and words."""

from __future__ import annotations

import pytest

from millrace.security.acls.binding import (
    CLUSTER_NAME,
    Acl,
    InvalidAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check,
    known,
)
from tests.unit.security.acls.models import acl


def test_the_numbers_are_the_protocols() -> None:
    assert [operation.name for operation in Operation if operation >= 13] == [
        "CREATE_TOKENS",
        "DESCRIBE_TOKENS",
        "TWO_PHASE_COMMIT",
    ]
    assert (ResourceType.USER, PatternType.PREFIXED, Permission.ALLOW) == (7, 4, 3)


def test_a_number_that_nobody_knows_is_unknown() -> None:
    assert known(Operation, 15) is Operation.TWO_PHASE_COMMIT
    assert known(Operation, 99) is Operation.UNKNOWN
    assert known(Permission, -1) is Permission.UNKNOWN


def test_types_are_written_as_in_kafkas_audit_lines() -> None:
    assert [kind.title for kind in ResourceType if kind >= ResourceType.TOPIC] == [
        "Topic",
        "Group",
        "Cluster",
        "TransactionalId",
        "DelegationToken",
        "User",
    ]


@pytest.mark.parametrize("principal", ["User:a", "Role:ops", "Group:x", "User:CN=a,OU=b", ":"])
def test_any_principal_with_a_colon_is_accepted(principal: str) -> None:
    check(acl("orders", principal=principal))


SOUND = acl("orders")


@pytest.mark.parametrize(
    "wrong,words",
    [
        (SOUND._replace(name=""), "Invalid empty resource name"),
        (SOUND._replace(resource_type=ResourceType.ANY), "Invalid resourceType ANY"),
        (SOUND._replace(resource_type=ResourceType.UNKNOWN), "Invalid resourceType UNKNOWN"),
        (SOUND._replace(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (SOUND._replace(pattern=PatternType.ANY), "Invalid patternType ANY"),
        (SOUND._replace(operation=Operation.ANY), "Invalid operation ANY"),
        (SOUND._replace(permission=Permission.UNKNOWN), "Invalid permissionType UNKNOWN"),
        (SOUND._replace(principal="alice"), "Could not parse principal from `alice`"),
        (
            SOUND._replace(resource_type=ResourceType.CLUSTER, name="my-cluster"),
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        ),
    ],
)
def test_what_createacls_refuses_is_refused_in_kafkas_words(wrong: Acl, words: str) -> None:
    with pytest.raises(InvalidAcl) as raised:
        check(wrong)
    assert str(raised.value).startswith(words)
