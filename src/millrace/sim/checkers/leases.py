"""A broker leads only while its lease lives."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import ServedWithoutLease


def nobody_serves_without_a_lease(facts: Facts) -> Iterator[Violation]:
    """What was asked after a broker's lease had ended, others may have been asked as well: two leaders at a
    time (F11)."""
    for event in facts.history.of(ServedWithoutLease):
        yield Violation(
            "served without a lease",
            f"{event.host} answered a {event.what} of {event.asked_at} ms, its lease having ended at "
            f"{event.gone_at} ms",
        )
