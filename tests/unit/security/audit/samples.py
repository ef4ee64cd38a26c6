"""Things that happen, for the tests of the audit."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.audit.auditor import Auditor, AuditPolicy
from millrace.security.audit.events import Actor, Decision, Event, Happening
from millrace.security.audit.outbox import Outbox

ALICE = Actor("User:alice", "10.0.0.1")


def denied(topic: str) -> Decision:
    return Decision(ALICE, "Produce", Operation.WRITE, ResourceType.TOPIC, topic, False, "DefaultDeny")


def event(
    what: Happening, *, count: int = 1, first_ms: int = 0, last_ms: int = 0, uid: str = "run-1"
) -> Event:
    return Event(uid, first_ms, last_ms, count, what)


class Hands:
    """A clock whose hands the test moves, for dates and for durations alike."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def loop_time(self) -> float:
        return self.now_ms / 1000


def auditor_with(
    outboxes: Iterable[Outbox], hands: Hands | None = None, policy: AuditPolicy | None = None
) -> Auditor:
    hands = hands or Hands()
    return Auditor(policy or AuditPolicy(), outboxes, clock=hands, loop_time=hands.loop_time, run_id="run")
