"""Kafka's rules, by example and against a walk over all permissions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.security.acls.authorizer import (
    SUPPORTED_OPERATIONS,
    Authorizer,
    Reason,
    Subject,
    host_texts,
    parse_super_users,
)
from millrace.security.acls.binding import Acl, Operation, ResourceType
from millrace.security.acls.index import AclIndex
from millrace.security.acls.roles import Role, RoleTable
from millrace.security.principals import InvalidPrincipal, Principal, user
from tests.unit.security.acls import models
from tests.unit.security.acls.models import NAMES, OPERATIONS, acl, deny

TOPIC = ResourceType.TOPIC


def authorizer(*acls: Acl, is_open: bool = False, super_users: frozenset[str] = frozenset()) -> Authorizer:
    return Authorizer(acls=AclIndex(acls), is_open_without_acl=is_open, super_users=super_users)


def me(rules: Authorizer, host: str = "10.0.0.1", *groups: str) -> Subject:
    return rules.subject(user("me"), host, groups)


def may(rules: Authorizer, name: str, operation: Operation = Operation.READ, host: str = "10.0.0.1") -> bool:
    return rules.allows(me(rules, host), operation, TOPIC, name)


@settings(max_examples=250)
@given(
    st.lists(models.acls, max_size=12),
    st.lists(models.acls, max_size=3),
    st.sampled_from(OPERATIONS),
    st.sampled_from(NAMES),
    st.booleans(),
    st.booleans(),
)
def test_decisions_are_those_of_a_walk_over_all_permissions(
    everything: list[Acl],
    of_tenants: list[Acl],
    operation: Operation,
    name: str,
    has_role: bool,
    is_open: bool,
) -> None:
    rules = Authorizer(
        acls=AclIndex(everything),
        tenant_acls=AclIndex(of_tenants),
        roles=RoleTable([Role("reader", ("Group:us",))] if has_role else []),
        is_open_without_acl=is_open,
    )
    subject = rules.subject(user("me"), "10.0.0.1", ["us"])
    principals = ["User:me", "User:*", "Group:us", *(["Role:reader"] if has_role else [])]
    both = [*everything, *of_tenants]

    expected = models.allows(both, principals, "10.0.0.1", operation, TOPIC, name, is_open=is_open)
    assert rules.allows(subject, operation, TOPIC, name) == expected
    ruling = rules.ruling(subject, operation, TOPIC, name)
    assert ruling.is_allowed == expected
    assert ruling.is_covered == any(models.covers(found, TOPIC, name) for found in both) or ruling.acl is None
    if ruling.acl is not None:
        assert ruling.acl in both
        assert models.covers(ruling.acl, TOPIC, name)
        assert models.concerns(ruling.acl, principals, "10.0.0.1")
        assert models.operation_matches(ruling.acl, operation)

    somewhere = models.allows_somewhere(both, principals, "10.0.0.1", operation, TOPIC, is_open=is_open)
    assert rules.allows_somewhere(subject, operation, TOPIC) == somewhere

    bits = rules.authorized_operations(subject, TOPIC, name)
    for each in Operation:
        expected = each in SUPPORTED_OPERATIONS[TOPIC] and rules.allows(subject, each, TOPIC, name)
        assert bool(bits >> each & 1) == expected


def test_deny_wins_over_every_allow() -> None:
    for denial in (deny("orders"), deny("ord..."), deny("*"), deny("orders", principal="User:*")):
        assert not may(authorizer(acl("orders"), acl("ord..."), acl("*"), denial), "orders")


def test_a_denied_read_still_shows_that_the_topic_is_there() -> None:
    rules = authorizer(acl("orders", Operation.WRITE), deny("orders", Operation.READ))
    assert may(rules, "orders", Operation.DESCRIBE)
    assert not may(authorizer(acl("orders"), deny("orders", Operation.ALL)), "orders", Operation.DESCRIBE)


def test_one_permission_for_anybody_closes_a_topic_to_the_rest() -> None:
    rules = authorizer(acl("orders", principal="User:you"), is_open=True)
    assert not may(rules, "orders")
    assert may(rules, "others"), "no permission covers it"
    assert not may(authorizer(), "others")


def test_permissions_count_from_their_host_alone() -> None:
    rules = authorizer(acl("orders", host="10.0.0.1"))
    assert may(rules, "orders")
    assert not may(rules, "orders", host="10.0.0.2")


@pytest.mark.parametrize(
    "address,texts",
    [
        ("10.0.0.1", ("10.0.0.1",)),
        ("::1", ("::1", "0:0:0:0:0:0:0:1")),
        ("fe80::1%eth0", ("fe80::1", "fe80:0:0:0:0:0:0:1")),
        ("::ffff:10.0.0.1", ("10.0.0.1",)),
        ("a unix socket", ("a unix socket",)),
    ],
)
def test_addresses_match_as_java_writes_them(address: str, texts: tuple[str, ...]) -> None:
    assert host_texts(address) == texts


def test_a_super_user_may_do_everything() -> None:
    rules = authorizer(deny("*", Operation.ALL, "User:*"), super_users=frozenset({"User:me"}))
    assert may(rules, "orders")
    assert rules.allows_somewhere(me(rules), Operation.WRITE, TOPIC)
    assert rules.authorized_operations(me(rules), ResourceType.GROUP, "g") == sum(
        1 << operation for operation in SUPPORTED_OPERATIONS[ResourceType.GROUP]
    )
    assert rules.ruling(me(rules), Operation.READ, TOPIC, "t").reason is Reason.SUPER_USER


def test_a_group_may_be_of_super_users_and_everybody_may_not() -> None:
    rules = authorizer(super_users=frozenset({"Group:admins", "User:*"}))
    assert not may(rules, "orders"), "in Kafka `User:*` makes nobody a super user"
    assert rules.allows(me(rules, "h", "admins"), Operation.READ, TOPIC, "orders")


def test_a_type_of_principal_that_is_not_ours_is_matched_as_it_is_written() -> None:
    rules = authorizer(acl("orders", principal="Service:me"))
    assert rules.allows(rules.subject(Principal("Service", "me"), "h"), Operation.READ, TOPIC, "orders")
    assert not may(rules, "orders")


def test_somewhere_is_nowhere_when_a_prefix_is_denied_that_dominates() -> None:
    write = Operation.WRITE
    assert authorizer_may_write(acl("abc...", write), deny("abcd...", write))
    assert not authorizer_may_write(acl("abc...", write), deny("ab...", write))
    assert not authorizer_may_write(acl("abc...", write), deny("abc...", write))
    assert authorizer_may_write(acl("abc...", write), deny("abc", write)), "one name of many"
    assert not authorizer_may_write(acl("abc", write), deny("abc", write))
    assert not authorizer_may_write(acl("abc", write), deny("*", write))
    assert authorizer_may_write(acl("abc", write), deny("abd", write))


def authorizer_may_write(*acls: Acl) -> bool:
    rules = authorizer(*acls)
    return rules.allows_somewhere(me(rules), Operation.WRITE, TOPIC)


def test_somewhere_looks_at_the_permissions_of_the_asker_alone() -> None:
    """With many permissions of others, which it never walks over."""
    others = [acl(f"t-{number}", Operation.WRITE, f"User:{number}") for number in range(2_000)]
    rules = authorizer(*others, acl("mine", Operation.WRITE))
    of_topics = rules.acls.of_type(TOPIC)
    assert of_topics is not None
    own = [grants for key in me(rules).keys if (grants := of_topics.subjects.get(key)) is not None]
    assert [len(grants) for grants in own] == [1]
    assert rules.allows_somewhere(me(rules), Operation.WRITE, TOPIC)
    assert not rules.allows_somewhere(rules.subject(user("nobody"), "h"), Operation.WRITE, TOPIC)


def test_super_users_stand_between_semicolons() -> None:
    assert parse_super_users(" User:CN=a,OU=b ; User:c;;") == {"User:CN=a,OU=b", "User:c"}
    assert parse_super_users("") == frozenset()
    with pytest.raises(InvalidPrincipal):
        parse_super_users("alice")
