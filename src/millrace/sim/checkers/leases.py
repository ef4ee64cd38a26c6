"""A broker leads only while its lease lives."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import RefusedConnections, ServedWithoutLease


def nobody_serves_without_a_lease(facts: Facts) -> Iterator[Violation]:
    """A request that leaves after a broker's lease has ended must not be served by that broker: another may
    lead by then, and there would be two leaders at a time (F11)."""
    for event in facts.history.of(ServedWithoutLease):
        yield Violation(
            "served without a lease",
            f"{event.host} answered a {event.what} of {event.asked_at} ms, its lease having ended at "
            f"{event.gone_at} ms",
        )


def a_refusal_is_no_proof_of_death(facts: Facts) -> Iterator[Violation]:
    """Each of the other brokers may be wrong once about a process that runs; a broker that is wrong again has
    not learned from it."""
    for event in facts.history.of(RefusedConnections):
        if event.leases_lost > event.others:
            yield Violation(
                "taken for dead",
                f"broker {event.node_id} ran, refused connections, and lost {event.leases_lost} leases",
            )
