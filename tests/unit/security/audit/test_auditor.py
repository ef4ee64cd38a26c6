"""The auditor tells what it should, folds it, and refuses when it is to be closed and cannot tell."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.audit.auditor import RESULTS_MAX, Auditor, AuditPolicy
from millrace.security.audit.events import Activity, AdminAction, Decision, Kind, Lifecycle, Login, Result
from millrace.security.audit.outbox import PATIENCE_S, Outbox
from millrace.security.principals import Identity, user
from tests.unit.security.audit.samples import Hands, auditor_with

ALICE = Identity(principal=user("alice"), mechanism="SCRAM-SHA-256")


def decide(
    auditor: Auditor,
    operation: Operation = Operation.WRITE,
    topic: str = "orders",
    *,
    is_allowed: bool = True,
    identity: Identity = ALICE,
) -> None:
    auditor.decided(
        identity,
        "10.0.0.1",
        "Produce",
        operation,
        ResourceType.TOPIC,
        topic,
        is_allowed=is_allowed,
        rule=lambda: "a rule",
    )


def told(outbox: Outbox) -> list[Any]:
    events = outbox.first(1_000)
    outbox.took(len(events), 0.0)
    return [(one.what, one.count) for one in events]


def test_repeats_are_counted_and_the_rule_is_asked_for_once() -> None:
    outbox, hands = Outbox("topic", 100), Hands()
    auditor = auditor_with([outbox], hands)
    for _ in range(5):
        hands.now_ms += 10
        decide(auditor, is_allowed=False)
    ((first, count),) = told(outbox)
    assert isinstance(first, Decision)
    assert (first.resource, first.is_allowed, first.rule, count) == ("orders", False, "a rule", 1)
    hands.now_ms += 60_000
    auditor.turn()
    assert told(outbox) == [(first, 4)]
    assert auditor.folded == 4
    auditor.turn()
    assert told(outbox) == []


def test_what_was_counted_is_told_at_the_end() -> None:
    outbox = Outbox("topic", 100)
    auditor = auditor_with([outbox])
    decide(auditor)
    decide(auditor)
    auditor.finish()
    assert [count for _, count in told(outbox)] == [1, 1]


def test_events_have_ids_of_their_own() -> None:
    outbox = Outbox("topic", 100)
    auditor = auditor_with([outbox])
    for number in range(5):
        decide(auditor, topic=str(number))
    assert len({one.uid for one in outbox.first(9)}) == 5


def test_exclusions_spare_reads_and_writes_but_no_failure_and_no_action() -> None:
    outbox = Outbox("topic", 100)
    policy = AuditPolicy(excluded_principals=frozenset(["User:alice"]), excluded_topics=frozenset(["noise"]))
    auditor = auditor_with([outbox], policy=policy)
    decide(auditor)
    decide(auditor, topic="noise", identity=Identity(principal=user("bob")))
    auditor.logged_in(ALICE, host="h", listener="L", is_encrypted=True)
    assert told(outbox) == []
    decide(auditor, is_allowed=False)
    decide(auditor, topic="noise", is_allowed=False)
    decide(auditor, Operation.CREATE)
    auditor.login_failed(
        "alice", mechanism="PLAIN", host="h", listener="L", is_encrypted=True, reason="no such user"
    )
    auditor.acted(ALICE, "h", "admin", "CreateTopics", [Result("Topic", "a", "NONE")])
    assert len(told(outbox)) == 5


@pytest.mark.parametrize("kind", list(Kind))
def test_only_what_is_asked_for_is_told(kind: Kind) -> None:
    outbox = Outbox("topic", 100)
    auditor = auditor_with([outbox], policy=AuditPolicy(kinds=frozenset([kind])))
    decide(auditor, is_allowed=False)
    decide(auditor)
    decide(auditor, Operation.DESCRIBE)
    auditor.logged_in(ALICE, host="h", listener="L", is_encrypted=True)
    auditor.acted(ALICE, "h", "", "CreateTopics", [])
    auditor.lives(Activity.START, "begins")
    ((what, _),) = told(outbox)
    expected = {
        Kind.LOGIN: Login,
        Kind.ADMIN: AdminAction,
        Kind.LIFECYCLE: Lifecycle,
    }
    assert isinstance(what, expected.get(kind, Decision))


def test_a_login_that_repeats_itself_is_folded() -> None:
    outbox = Outbox("topic", 100)
    auditor = auditor_with([outbox])
    for _ in range(3):
        auditor.login_failed(
            "mallory", mechanism="PLAIN", host="h", listener="L", is_encrypted=False, reason="wrong"
        )
    auditor.logged_in(ALICE, host="h", listener="L", is_encrypted=True)
    (failed, _), (worked, _) = told(outbox)
    assert (failed.actor.principal, failed.is_success) == ("User:mallory", False)
    assert (worked.actor.principal, worked.mechanism) == ("User:alice", "SCRAM-SHA-256")


def test_the_results_of_a_huge_request_are_cut() -> None:
    outbox = Outbox("topic", 100)
    results = [Result("Topic", str(number), "NONE") for number in range(RESULTS_MAX + 7)]
    auditor_with([outbox]).acted(ALICE, "h", "admin", "DeleteTopics", results)
    ((action, _),) = told(outbox)
    assert len(action.results) == RESULTS_MAX
    assert action.left_out == 7


def test_open_goes_on_and_tells_what_was_lost() -> None:
    outbox, other = Outbox("topic", 2), Outbox("file", 100)
    auditor = auditor_with([outbox, other])
    for number in range(5):
        decide(auditor, topic=str(number))
    assert auditor.refusal() is None
    assert (outbox.lost, other.lost) == (3, 0)
    told(outbox)
    auditor.turn()
    ((what, _),) = told(outbox)
    assert what.activity is Activity.EVENTS_LOST
    assert what.text == "3 events of the audit were lost: topic"
    assert len(other) == 5, "only the place that lost them is told"


def test_closed_refuses_while_a_place_cannot_be_written_to() -> None:
    outbox, hands = Outbox("topic", 10), Hands()
    auditor = auditor_with([Outbox("file", 10), outbox], hands, AuditPolicy(is_closed=True))
    assert auditor.refusal() is None
    decide(auditor)
    assert auditor.refusal() is None
    auditor.outboxes[0].took(1, hands.loop_time())
    hands.now_ms += int(PATIENCE_S * 1000) + 1
    refusal = auditor.refusal()
    assert refusal is not None
    assert "(topic)" in str(refusal)
    outbox.took(1, hands.loop_time())
    assert auditor.refusal() is None
