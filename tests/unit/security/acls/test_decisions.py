"""What is remembered for a connection is what the authorizer of the moment would say, and is asked for
once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.security.acls import decisions
from millrace.security.acls.authorizer import NOT_ASKED, Authorizer, Subject
from millrace.security.acls.binding import Acl, Operation, ResourceType
from millrace.security.acls.decisions import EVERY_OPERATION, Access, Decisions
from millrace.security.acls.index import AclIndex
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import DEFAULT_KINDS, Decision, Kind
from millrace.security.audit.outbox import Outbox
from millrace.security.principals import NOBODY, Identity, user
from tests.unit.security.acls import models
from tests.unit.security.acls.models import NAMES, acl, deny
from tests.unit.security.audit.samples import auditor_with

TOPIC = ResourceType.TOPIC
ME = Identity(principal=user("me"))
READ = Operation.READ


@settings(max_examples=50)
@given(st.data(), st.lists(st.lists(models.acls, max_size=8), min_size=1, max_size=4))
def test_answers_are_those_of_the_present_authorizer(data: st.DataObject, versions: list[list[Acl]]) -> None:
    """Permissions change between identical questions; no answer is of the time before."""
    access = Access()
    connections = [Decisions(access, ME, "10.0.0.1"), Decisions(access, Identity(principal=user("you")), "h")]
    for version in versions:
        rules = Authorizer(acls=AclIndex(version))
        access.replace(rules)
        for _ in range(6):
            connection = data.draw(st.sampled_from(connections))
            operation = data.draw(st.sampled_from([READ, Operation.DESCRIBE]))
            name = data.draw(st.sampled_from(NAMES))
            subject = rules.subject(connection.identity.principal, connection._host)
            assert connection.subject == subject
            assert connection.allows(operation, TOPIC, name) == rules.allows(subject, operation, TOPIC, name)
            assert connection.allows_somewhere(operation, TOPIC) == rules.allows_somewhere(
                subject, operation, TOPIC
            )
            assert connection.authorized_operations(TOPIC, name) == rules.authorized_operations(
                subject, TOPIC, name
            )


def test_who_may_ask_the_same_has_the_same_name_groups_and_host() -> None:
    access = Access(Authorizer(acls=AclIndex([])))
    grouped = Identity(principal=user("me"), groups=("us",))
    askers = [Decisions(access, who, host).asker for who in (ME, grouped, NOBODY) for host in ("a", "b")]
    assert len(set(askers)) == 6
    assert Decisions(access, Identity(principal=user("me"), mechanism="PLAIN"), "a").asker == askers[0]
    access.replace(None)
    assert Decisions(access, ME, "a").asker is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    real = Authorizer.allows

    def allows(
        self: Authorizer, subject: Subject, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        asked.append(name)
        return real(self, subject, operation, resource_type, name)

    monkeypatch.setattr(Authorizer, "allows", allows)
    return asked


def test_the_authorizer_is_asked_once_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch)
    access = Access(Authorizer(acls=AclIndex([acl("orders")])))
    connection = Decisions(access, ME, "h")
    for _ in range(5):
        assert connection.allows(READ, TOPIC, "orders")
        assert not connection.allows(READ, TOPIC, "others")
    assert asked == ["orders", "others"]

    access.replace(Authorizer(acls=AclIndex([acl("orders")]), revision=2))
    assert connection.allows(READ, TOPIC, "orders")
    assert asked == ["orders", "others", "orders"]


def test_no_connection_is_allowed_what_another_was(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(Authorizer(acls=AclIndex([acl("orders")])))
    assert Decisions(access, ME, "h").allows(READ, TOPIC, "orders")
    assert not Decisions(access, NOBODY, "h").allows(READ, TOPIC, "orders")


def test_another_identity_forgets_what_the_one_before_was_allowed() -> None:
    access = Access(Authorizer(acls=AclIndex([acl("orders")])))
    connection = Decisions(access, ME, "h")
    assert connection.allows(READ, TOPIC, "orders")
    connection.authenticated_as(NOBODY)
    assert connection.identity is NOBODY
    assert not connection.allows(READ, TOPIC, "orders")


def test_groups_of_the_credential_count() -> None:
    access = Access(Authorizer(acls=AclIndex([acl("orders", principal="Group:us")])))
    identity = Identity(principal=user("me"), groups=("us",))
    assert Decisions(access, identity, "h").allows(READ, TOPIC, "orders")


def test_an_empty_name_is_not_taken_for_any_name() -> None:
    access = Access(Authorizer(acls=AclIndex([acl("orders"), deny("*", Operation.WRITE)])))
    connection = Decisions(access, ME, "h")
    assert connection.allows_somewhere(READ, TOPIC)
    assert not connection.allows(READ, TOPIC, "")


def test_without_an_authorizer_everything_is_allowed() -> None:
    connection = Decisions(Access(), NOBODY, "h")
    assert connection.allows(READ, TOPIC, "orders")
    assert connection.allows_on_cluster(Operation.ALTER)
    assert connection.allows_somewhere(Operation.WRITE, TOPIC)
    assert connection.authorized_operations(TOPIC, "orders") == EVERY_OPERATION[TOPIC]
    assert connection.subject is None


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "REMEMBERED_MAX", 3)
    connection = Decisions(Access(Authorizer()), ME, "h")
    for number in range(10):
        assert not connection.allows(READ, TOPIC, f"t-{number}")
        assert not connection.authorized_operations(TOPIC, f"t-{number}")
    assert len(connection._known) <= 3
    assert len(connection._operations) <= 3


def test_long_names_are_decided_and_not_remembered() -> None:
    """A client may ask for ten thousand names of a megabyte each, and be refused all of them."""
    name = "t" * (decisions.REMEMBERED_LENGTH_MAX + 1)
    connection = Decisions(Access(Authorizer(acls=AclIndex([acl(name, READ, "User:me")]))), ME, "h")
    for _ in range(2):
        assert connection.allows(READ, TOPIC, name)
        assert connection.shows(READ, TOPIC, name)
        assert not connection.allows(READ, TOPIC, name + "x")
        assert connection.authorized_operations(TOPIC, name)
    assert not connection._known
    assert not connection._operations


def test_the_bit_sets_are_those_that_kafka_answers_without_an_authorizer() -> None:
    types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
    assert [EVERY_OPERATION[each] for each in types] == [3576, 3400, 8096]


def test_not_asked_is_told_from_nothing_being_allowed() -> None:
    assert NOT_ASKED == -2147483648
    assert not any(NOT_ASKED >> operation & 1 for operation in Operation)


def audited() -> tuple[Access, Outbox]:
    outbox = Outbox("topic", 100)
    access = Access(Authorizer(acls=AclIndex([acl("orders")])))
    kinds = frozenset((*DEFAULT_KINDS, Kind.DESCRIBE))
    access.auditor = auditor_with([outbox], policy=AuditPolicy(kinds=kinds))
    return access, outbox


def told(outbox: Outbox) -> list[tuple[str, str, str, bool, int]]:
    events = outbox.first(100)
    outbox.took(len(events), 0.0)
    whats = [(one.what, one.count) for one in events]
    return [
        (what.request, what.operation.name, what.resource, what.is_allowed, count)
        for what, count in whats
        if isinstance(what, Decision)
    ]


def test_the_audit_is_told_what_is_found_out_and_every_refusal() -> None:
    access, outbox = audited()
    connection = Decisions(access, ME, "h")
    connection.request = "Fetch"
    for _ in range(3):
        assert connection.allows(READ, TOPIC, "orders")
        assert not connection.allows(READ, TOPIC, "others")
        assert not connection.allows_somewhere(Operation.WRITE, TOPIC)
    assert told(outbox) == [
        ("Fetch", "READ", "orders", True, 1),
        ("Fetch", "READ", "others", False, 1),
        ("Fetch", "WRITE", "*", False, 1),
    ]
    assert access.auditor is not None
    assert access.auditor.folded == 4, "refusals are folded, and what is allowed is not even told again"
    access.auditor.finish()
    assert told(outbox) == [("Fetch", "READ", "others", False, 2), ("Fetch", "WRITE", "*", False, 2)]


def test_what_is_left_out_of_a_list_is_no_refusal() -> None:
    access, outbox = audited()
    connection = Decisions(access, ME, "h")
    assert connection.shows(Operation.DESCRIBE, TOPIC, "orders")
    assert not connection.shows(Operation.DESCRIBE, TOPIC, "others")
    assert not connection.shows(Operation.DESCRIBE, TOPIC, "others")
    assert [(name, is_allowed) for _, _, name, is_allowed, _ in told(outbox)] == [("orders", True)]
    assert not connection.allows(Operation.DESCRIBE, TOPIC, "others")
    assert [(name, is_allowed) for _, _, name, is_allowed, _ in told(outbox)] == [("others", False)]


def test_the_rule_that_decided_is_told() -> None:
    access, outbox = audited()
    assert Decisions(access, ME, "h").allows(READ, TOPIC, "orders")
    (one,) = outbox.first(9)
    assert isinstance(one.what, Decision)
    assert one.what.rule.startswith("MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=orders")


def test_renewal_lets_the_same_be_decided_and_told_anew() -> None:
    access, _ = audited()
    connection = Decisions(access, ME, "h")
    assert connection.allows(READ, TOPIC, "orders")
    before = access.authorizer
    access.renew()
    assert access.authorizer == before
    assert access.authorizer is not before
    assert access.auditor is not None
    assert connection.allows(READ, TOPIC, "orders")
    assert access.auditor.told + access.auditor.folded == 2
    nothing = Access()
    nothing.renew()
    assert nothing.authorizer is None
