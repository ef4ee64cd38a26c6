"""Every way to a decision has its words, and Kafka's line for the log."""

from __future__ import annotations

from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import CLUSTER_NAME, Acl, Operation, ResourceType
from millrace.security.acls.explain import describe_acl, explain, rule_text
from millrace.security.acls.index import AclIndex
from millrace.security.acls.roles import Role, RoleTable
from millrace.security.principals import user
from tests.unit.security.acls.models import acl, deny

TOPIC = ResourceType.TOPIC
ROLES = RoleTable([Role("reader", ("User:me", "Group:us"))])


def words(
    *acls: Acl,
    operation: Operation = Operation.READ,
    is_open: bool = False,
    super_users: frozenset[str] = frozenset(),
    groups: tuple[str, ...] = (),
    tenant_acls: tuple[Acl, ...] = (),
) -> tuple[str, ...]:
    rules = Authorizer(
        acls=AclIndex(acls),
        tenant_acls=AclIndex(tenant_acls),
        roles=ROLES,
        is_open_without_acl=is_open,
        super_users=super_users,
    )
    return explain(rules, rules.subject(user("me"), "10.0.0.1", groups), operation, TOPIC, "orders").words


def test_the_rule_that_decides_is_told() -> None:
    assert words(acl("ord...")) == (
        "User:me may read topic 'orders' from 10.0.0.1.",
        "The rule: User:me may read every topic whose name begins with 'ord'.",
    )
    assert words(acl("*", Operation.ALL, "User:*"), deny("orders", host="10.0.0.1")) == (
        "User:me may not read topic 'orders' from 10.0.0.1.",
        "The rule: User:me may not read topic 'orders' from 10.0.0.1.",
        "What is denied stays denied, whatever else allows it.",
    )


def test_the_way_by_a_role_or_a_group_is_told() -> None:
    assert words(acl("orders", principal="Role:reader"))[2:] == ("User:me has the role reader.",)
    assert words(acl("orders", principal="Role:reader"), groups=("us",))[2:] == (
        "User:me has the role reader.",
        "Group:us, to which User:me belongs, has the role reader.",
    )
    assert words(acl("orders", principal="Group:us"), groups=("us",))[2:] == ("User:me belongs to Group:us.",)


def test_what_is_implied_is_told() -> None:
    assert words(acl("orders", Operation.WRITE), operation=Operation.DESCRIBE)[2:] == (
        "Whoever may write may also describe.",
    )
    assert len(words(acl("orders", Operation.ALL), operation=Operation.DESCRIBE)) == 2


def test_what_a_tenant_stands_for_is_told() -> None:
    assert words(tenant_acls=(acl("ord..."),))[2:] == ("It was not set by itself: a tenant stands for it.",)


def test_decisions_without_a_permission_are_told_with_the_setting() -> None:
    assert "super.users" in words(super_users=frozenset({"User:me"}))[1]
    assert "open to everybody" in words(is_open=True)[1]
    assert "allow.everyone.if.no.acl.found is false" in words()[1]
    assert words(acl("orders", principal="User:you"))[1] == (
        "Permissions cover this resource, but none of them allows this, and so it is denied."
    )


def test_permissions_read_as_sentences() -> None:
    assert describe_acl(acl("*", Operation.ALL, "User:*")) == "everybody may do everything to every topic"
    cluster = acl(CLUSTER_NAME, Operation.CLUSTER_ACTION, resource_type=ResourceType.CLUSTER)
    assert describe_acl(cluster) == "User:me may cluster action the cluster"


def test_rules_have_kafkas_names() -> None:
    rules = Authorizer(acls=AclIndex([deny("orders")]))
    subject = rules.subject(user("me"), "10.0.0.1")
    assert rule_text(rules.ruling(subject, Operation.READ, TOPIC, "orders")) == (
        "MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
        "principal=User:me, host=*, operation=READ, permissionType=DENY])"
    )
    assert rule_text(rules.ruling(subject, Operation.READ, TOPIC, "others")) == "DefaultDeny"
