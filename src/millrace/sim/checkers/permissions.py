"""Who has lost a permission is not served any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import GuestServed, PermissionGiven, PermissionTaken

BOUND_MS: Final = 1_000
"""How long after a change was acknowledged some broker may not have heard of it."""
READ: Final = "read"


def nobody_is_served_without_permission(facts: Facts) -> Iterator[Violation]:
    """No record leaves, and no request is granted, later than the bound after the permission went. What was
    written before may be acknowledged after it."""
    taken: dict[tuple[str, str], int] = {}
    for event in facts.history.events:
        match event:
            case PermissionTaken():
                taken[event.guest, event.what] = event.at
            case PermissionGiven():
                taken.pop((event.guest, event.what), None)
            case GuestServed():
                since = taken.get((event.guest, event.what))
                moment = event.at if event.what == READ else event.asked_at
                if since is not None and moment > since + BOUND_MS:
                    yield Violation(
                        "served without permission",
                        f"{event.guest} was served a {event.what} at {event.at} ms, asked at "
                        f"{event.asked_at} ms; it lost the permission at {since} ms",
                    )
            case _:
                pass
