"""An outbox is bounded, counts what it could not take, and knows when it is stuck."""

from __future__ import annotations

from millrace.security.audit.outbox import PATIENCE_S, Outbox
from tests.unit.security.audit.samples import denied, event


def test_events_stay_until_they_are_written() -> None:
    outbox = Outbox("file", 10)
    woken = []
    outbox.wake = lambda: woken.append(True)
    events = [event(denied(str(number))) for number in range(3)]
    for one in events:
        outbox.put(one, 0.0)
    assert outbox.first(2) == events[:2]
    assert outbox.first(2) == events[:2]
    outbox.took(2, 1.0)
    assert outbox.first(9) == events[2:]
    assert outbox.written == 2
    assert len(woken) == 3


def test_what_finds_no_room_is_counted_and_told_once_there_is_room() -> None:
    outbox = Outbox("file", 1)
    for number in range(4):
        outbox.put(event(denied(str(number))), 0.0)
    assert outbox.is_full
    assert outbox.lost == 3
    assert outbox.take_lost() == 0, "no room yet"
    outbox.took(1, 1.0)
    assert outbox.take_lost() == 3
    assert outbox.take_lost() == 0
    assert outbox.lost == 3


def test_it_is_stuck_when_it_is_full_or_when_the_oldest_waits_too_long() -> None:
    outbox = Outbox("file", 2)
    assert not outbox.is_stuck(1_000_000.0)
    outbox.put(event(denied("a")), 100.0)
    assert not outbox.is_stuck(100.0 + PATIENCE_S)
    assert outbox.is_stuck(100.1 + PATIENCE_S)
    outbox.put(event(denied("b")), 100.0)
    assert outbox.is_stuck(100.0)
    outbox.took(1, 150.0)
    assert not outbox.is_stuck(150.0 + PATIENCE_S), "something was written a moment ago"
