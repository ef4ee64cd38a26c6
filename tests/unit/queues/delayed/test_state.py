"""What is pending, under way and cancelled, as the records of the store tell it."""

from __future__ import annotations

from millrace.queues.delayed.codec import (
    Cancelled,
    Done,
    Intent,
    MessageId,
    Settled,
    StoredMessage,
    Target,
    decode,
    encode_moved,
)
from millrace.queues.delayed.state import RUN, StoreState
from tests.unit.queues.delayed.messages import TOPIC_ID, record, stored

TARGET = Target(TOPIC_ID, 0)


def never(_key: int) -> bool:
    return False


def state_of(*records: object) -> StoreState:
    state = StoreState()
    for offset, each in enumerate(records):
        state.apply(offset, each, never)  # type: ignore[arg-type]
        state.next_offset = offset + 1
    return state


def test_a_message_is_pending_until_an_intent_names_it() -> None:
    state = state_of(stored(record(0)), stored(record(1, 9_000)))
    assert (state.pending_count, state.added) == (2, [(2_000, 0), (9_000, 1)])
    state.apply(2, Intent(TARGET, 1, 0, 0, False, ((2_000, 0),)), never)
    assert (state.pending_count, state.settled, state.open_intents) == (1, [(2_000, 0)], {2: 0})
    state.apply(3, Done((2,)), never)
    assert state.open_intents == {}


def test_an_intent_that_is_tried_otherwise_settles_nothing_twice() -> None:
    state = state_of(stored(record(0)), Intent(TARGET, 1, 0, 0, False, ((2_000, 0),)))
    state.apply(2, Intent(TARGET, 1, 1, 0, True, ((2_000, 0),)), never)
    assert state.pending_count == 0
    assert state.open_intents == {1: 0, 2: 0}


def test_a_cancellation_counts_for_what_was_stored_before_it() -> None:
    state = state_of(stored(record(7)), Cancelled(MessageId(TOPIC_ID, 0, 7)), stored(record(8)))
    assert state.is_cancelled(stored(record(7)), 0)
    assert not state.is_cancelled(stored(record(8)), 2)
    # The same id once more, behind the cancellation.
    assert not state.is_cancelled(stored(record(7)), 3)


def test_a_message_that_replaces_another_cancels_it() -> None:
    state = state_of(stored(record(7)), stored(record(8, replaces=7)))
    assert state.is_cancelled(stored(record(7)), 0)
    assert not state.is_cancelled(stored(record(8, replaces=7)), 1)


def test_a_moved_message_stays_cancelled() -> None:
    first = stored(record(7))
    state = state_of(first, Cancelled(MessageId(TOPIC_ID, 0, 7)), Settled(((2_000, 0),)))
    moved = decode(*encode_moved(first, 0))
    assert isinstance(moved, StoredMessage)
    state.apply(3, moved, never)
    assert state.pending_count == 1
    assert state.is_cancelled(moved, 3)


def test_a_repeated_message_that_came_lately_is_left_out() -> None:
    state = StoreState()
    again = stored(record(7, is_repeated=True))
    state.apply(0, again, lambda _key: True)
    assert (state.pending_count, state.repeated_count, state.added) == (0, 1, [])
    state.apply(1, again, never)
    assert state.pending_count == 1


def test_the_log_is_needed_from_the_oldest_pending_or_open_one_on() -> None:
    state = StoreState()
    for offset in (10, RUN + 5):
        state.apply(offset, stored(record(offset, offset)), never)
    state.next_offset = RUN + 6
    assert state.needed_offset == 0
    state.apply(RUN + 6, Intent(TARGET, 1, 0, 0, False, ((10, 10),)), never)
    state.next_offset = RUN + 7
    assert state.needed_offset == 10
    state.apply(RUN + 7, Done((RUN + 6,)), never)
    state.next_offset = RUN + 8
    assert state.needed_offset == RUN
    state.apply(RUN + 8, Settled(((RUN + 5, RUN + 5),)), never)
    state.next_offset = RUN + 9
    assert state.needed_offset == RUN + 9


def test_what_stood_before_the_start_is_not_settled_again() -> None:
    state = StoreState(100)
    state.apply(100, Settled(((5, 50),)), never)
    assert (state.pending_count, state.settled) == (0, [])


def test_cancellations_of_what_is_gone_are_forgotten() -> None:
    state = state_of(stored(record(7)), Cancelled(MessageId(TOPIC_ID, 0, 7)))
    state.forget_old_cancellations()
    assert len(state.cancelled) == 1
    state.apply(2, Settled(((2_000, 0),)), never)
    state.next_offset = 3
    state.forget_old_cancellations()
    assert len(state.cancelled) == 0


def test_what_is_settled_without_being_pending_is_left_out_of_account() -> None:
    state = state_of(stored(record(0)), Settled(((2_000, 0),)), Settled(((2_000, 0), (5_000, 9_000))))
    assert (state.pending_count, state.unknown_count) == (0, 2)
    assert state.settled == [(2_000, 0)]
