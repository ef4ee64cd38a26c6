from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.core.errors import MillraceError
from millrace.queues.errors import InvalidRecordState, InvalidShareRequest
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acknowledging import AckRange
from millrace.queues.share_partition.acquiring import BatchSpan
from millrace.queues.share_partition.changes import NO_CHANGE
from millrace.queues.share_partition.model import AcquireMode, Delta, RecordState, StateBatch
from tests.unit.queues.share_partition.lab import ACCEPT, REJECT, RELEASE, RENEW, Lab, stored

EXACT = AcquireMode.RECORD_LIMIT


def test_records_are_acquired_once_and_done_when_their_acknowledgement_is_stored() -> None:
    lab = Lab(batches=[10, 10])
    assert lab.take() == [(0, 19, 1)]
    assert lab.take(member="b") == []
    change = lab.begin(0, 9, ACCEPT)
    assert change.delta is not None
    assert (change.delta.start_offset, change.delta.batches) == (10, ())
    assert lab.partition.start_offset == 0
    lab.store(change)
    assert (lab.partition.start_offset, lab.partition.acquired_count) == (10, 10)


def test_what_is_done_is_told_apart_from_what_a_new_leader_would_offer_again() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    # At first nobody has stored where it begins.
    is_stored = [lab.partition.is_stored]
    change = lab.begin(10, 14, ACCEPT)
    is_stored.append(lab.partition.is_stored)
    lab.store(change)
    assert [*is_stored, lab.partition.is_stored] == [False, False, True]
    assert lab.partition.done() == (0, [(10, 14)])


def test_acknowledged_out_of_order_the_delta_has_the_run_and_the_count_of_the_lag() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    change = lab.begin(10, 14, ACCEPT)
    assert change.delta is not None
    assert change.delta.start_offset == 0
    assert change.delta.delivery_complete_count == 5
    assert change.delta.batches == (StateBatch(10, 14, RecordState.ACKNOWLEDGED, 0),)


def test_batches_come_whole_unless_the_number_of_records_is_a_limit() -> None:
    lab = Lab(batches=[10, 10, 10])
    assert lab.take(5) == [(0, 9, 1)]
    assert lab.take(5, mode=EXACT) == [(10, 14, 1)]
    assert lab.take(11) == [(15, 29, 1)]


def test_acquired_ranges_are_cut_at_batches() -> None:
    lab = Lab(batches=[4, 4, 4, 4])
    assert lab.take(batch_size=5) == [(0, 7, 1), (8, 15, 1)]


def test_a_slow_record_stops_nobody() -> None:
    lab = Lab(ShareSettings(record_locks_max=100), batches=[10] * 100)
    lab.take(10)
    for first in range(10, 1_000, 10):
        assert lab.take(10, member="b") == [(first, first + 9, 1)]
        assert lab.say(first, first + 9, ACCEPT, member="b") is None
    assert (lab.partition.start_offset, lab.partition.run_count) == (0, 2)


def test_locks_are_limited_for_all_and_for_each() -> None:
    lab = Lab(ShareSettings(record_locks_max=30, member_record_locks_max=20), batches=[10] * 10)
    assert lab.take(mode=EXACT) == [(0, 19, 1)]
    assert lab.take(mode=EXACT) == []
    assert lab.take(member="b", mode=EXACT) == [(20, 29, 1)]
    assert lab.take(member="c", mode=EXACT) == []


def test_a_lock_that_ends_makes_its_records_available_to_others() -> None:
    lab = Lab(batches=[10])
    lab.take()
    assert lab.partition.next_deadline_ms() == lab.now_ms + 30_000
    change = lab.wait(30_000)
    assert change.wakes
    assert change.delta is not None
    assert change.delta.batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),)
    assert lab.take(member="b") == [(0, 9, 2)]
    assert isinstance(lab.say(0, 9, ACCEPT), InvalidRecordState)


def test_renewing_moves_the_end_of_a_lock() -> None:
    lab = Lab(batches=[10])
    lab.take()
    lab.wait(20_000)
    assert lab.say(0, 4, RENEW) is None
    lab.wait(10_000)
    assert lab.take(member="b") == [(5, 9, 2)]
    lab.wait(20_000)
    assert lab.take(member="b") == [(0, 4, 2)]


def test_renewing_may_be_forbidden() -> None:
    lab = Lab(ShareSettings(may_renew=False), batches=[10])
    lab.take()
    assert isinstance(lab.say(0, 4, RENEW), InvalidRecordState)


@pytest.mark.parametrize(
    "ranges, error",
    [
        ([AckRange(0, 20, ACCEPT)], InvalidShareRequest),
        ([AckRange(20, 20, ACCEPT)], InvalidShareRequest),
        ([AckRange(5, 4, ACCEPT)], InvalidShareRequest),
        ([AckRange(5, 6, ACCEPT), AckRange(6, 7, ACCEPT)], InvalidShareRequest),
        ([AckRange(0, 2, ACCEPT), AckRange(3, 12, ACCEPT)], InvalidRecordState),
        ([AckRange(10, 12, ACCEPT)], InvalidRecordState),
    ],
)
def test_all_of_an_acknowledgement_counts_or_nothing(
    ranges: list[AckRange], error: type[MillraceError]
) -> None:
    lab = Lab(batches=[10, 10])
    lab.take(10)
    lab.take(10, member="b")
    assert isinstance(lab.partition.acknowledge("a", ranges, lab.now_ms), error)
    assert lab.partition.acquired_count == 20


def test_what_is_done_may_be_acknowledged_again_to_no_effect() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    lab.say(0, 9, ACCEPT)
    assert lab.say(0, 12, ACCEPT) is None
    assert lab.partition.start_offset == 13


def test_nobody_touches_what_is_being_stored() -> None:
    lab = Lab(batches=[10])
    lab.take()
    change = lab.begin(0, 4, RELEASE)
    assert isinstance(lab.say(0, 4, ACCEPT), InvalidRecordState)
    assert lab.take(member="b") == []
    lab.store(change)
    assert lab.take(member="b") == [(0, 4, 2)]


def test_what_cannot_be_stored_is_acquired_as_before() -> None:
    lab = Lab(batches=[10])
    lab.take()
    lab.store(lab.begin(0, 9, ACCEPT), is_stored=False)
    assert lab.partition.acquired_count == 10
    assert lab.say(0, 9, ACCEPT) is None
    assert lab.partition.start_offset == 10


def test_what_cannot_be_stored_until_its_lock_ended_is_available() -> None:
    lab = Lab(batches=[10])
    lab.take()
    change = lab.begin(0, 9, ACCEPT)
    lab.now_ms += 30_000
    lab.store(change, is_stored=False)
    assert lab.take(member="b") == [(0, 9, 2)]


def test_an_expiry_that_cannot_be_stored_goes_with_the_next_delta() -> None:
    lab = Lab(batches=[10, 10])
    lab.take(10)
    lab.now_ms += 30_000
    lab.store(lab.partition.expire(lab.now_ms), is_stored=False)
    lab.partition.candidates("a", lab.now_ms, limit_offset=20, records_max=500)
    assert lab.take(20) == [(0, 9, 2), (10, 19, 1)]
    change = lab.begin(10, 19, ACCEPT)
    assert change.delta is not None
    assert change.delta.batches == (
        StateBatch(0, 9, RecordState.AVAILABLE, 1),
        StateBatch(10, 19, RecordState.ACKNOWLEDGED, 0),
    )


def test_one_write_that_fails_does_not_let_the_next_one_move_the_start() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    first, second = lab.begin(0, 9, ACCEPT), lab.begin(10, 19, ACCEPT)
    assert second.delta is not None
    # It must not move the start back either, if the first one is stored.
    assert (second.delta.start_offset, second.delta.delivery_complete_count) == (-1, 20)
    assert lab.partition.stored(first.token, is_stored=False, now_ms=lab.now_ms) == NO_CHANGE
    change = lab.partition.stored(second.token, is_stored=True, now_ms=lab.now_ms)
    assert lab.partition.start_offset == 0
    assert change.delta == Delta(0, 10, ()), "what was stored relied upon a start that was not"


def test_the_last_delivery_ends_in_the_archive() -> None:
    lab = Lab(ShareSettings(delivery_count_limit=2), batches=[10])
    for count in (1, 2):
        assert lab.take() == [(0, 9, count)]
        lab.say(0, 9, RELEASE)
    assert lab.take() == []
    assert lab.partition.start_offset == 10


def test_a_limit_of_one_gives_up_after_one_delivery() -> None:
    lab = Lab(ShareSettings(delivery_count_limit=1), batches=[10])
    assert lab.take() == [(0, 9, 1)]
    lab.wait(30_000)
    assert (lab.take(), lab.partition.start_offset) == ([], 10)


def test_a_lowered_limit_allows_one_last_delivery() -> None:
    lab = Lab(batches=[1])
    for _ in range(3):
        lab.take()
        lab.say(0, 0, RELEASE)
    lab.partition.settings = ShareSettings(delivery_count_limit=2)
    assert lab.take() == [(0, 0, 4)]
    lab.say(0, 0, RELEASE)
    assert lab.partition.start_offset == 1


def test_closing_in_order_gives_the_delivery_back() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    assert lab.partition.release_member("a", lab.now_ms, in_order=True).wakes
    assert (lab.partition.end_offset, lab.partition.acquired_count) == (0, 0)
    assert lab.take() == [(0, 19, 1)]


def test_a_lost_member_loses_its_delivery() -> None:
    lab = Lab(batches=[10, 10])
    lab.take(10)
    lab.take(10, member="b")
    lab.store(lab.partition.release_member("a", lab.now_ms, in_order=False))
    assert lab.take(member="c") == [(0, 9, 2)]
    assert not lab.partition.release_member("nobody", lab.now_ms, in_order=False).wakes


def test_poison_is_isolated_with_kafkas_sizes() -> None:
    lab = Lab(batches=[100])
    sizes = []
    for _ in range(6):
        runs = lab.take()
        sizes.append([last - first + 1 for first, last, _ in runs])
        lab.wait(30_000)
    assert sizes == [[100], [100], [100], [50], [1], [1]]


def test_two_records_never_acknowledged_come_in_the_order_that_kafka_shows() -> None:
    lab = Lab(batches=[2])
    seen = []
    while runs := lab.take():
        seen.append([(offset, count) for first, last, count in runs for offset in range(first, last + 1)])
        lab.wait(30_000)
    assert seen == [
        [(0, 1), (1, 1)],
        [(0, 2), (1, 2)],
        [(0, 3), (1, 3)],
        [(0, 4)],
        [(0, 5)],
        [(1, 4)],
        [(1, 5)],
    ]


def test_poison_comes_alone() -> None:
    lab = Lab(batches=[10, 10])
    lab.take(10)
    for _ in range(3):
        lab.wait(30_000)
        lab.take(10)
    assert lab.take() == [(5, 9, 4)]
    assert lab.take() == [(10, 19, 1)]


def test_held_records_take_no_lock_and_come_back_in_time() -> None:
    lab = Lab(ShareSettings(retry_backoff_ms=1_000), batches=[10, 10])
    lab.take(10)
    lab.say(0, 9, RELEASE)
    assert lab.partition.acquired_count == 0
    assert lab.take() == [(10, 19, 1)]
    assert lab.partition.next_deadline_ms() == lab.now_ms + 1_000
    assert not lab.wait(999).wakes
    assert lab.wait(1).wakes
    assert lab.take() == [(0, 9, 2)]


def test_failures_only_may_count() -> None:
    lab = Lab(ShareSettings(counts_failures_only=True), batches=[10])
    for _ in range(20):
        assert lab.take() == [(0, 9, 1)]
        lab.say(0, 9, RELEASE)
    lab.take()
    lab.wait(30_000)
    assert lab.take() == [(0, 9, 2)]


def test_rejected_records_are_done_once_their_dead_letter_is_written() -> None:
    lab = Lab(ShareSettings(dead_letter_topic="dlq.x"), batches=[10])
    lab.take()
    change = lab.begin(2, 4, REJECT)
    assert change.delta is not None
    assert change.delta.batches == (StateBatch(2, 4, RecordState.ARCHIVING, 1),)
    assert not change.dead_letters
    lab.store(change)
    assert lab.dead_letters == [(2, 4, 1, "rejected")]
    lab.say(0, 1, ACCEPT)
    assert (lab.partition.start_offset, lab.partition.archiving_count) == (2, 3)
    lab.store(lab.partition.dead_letter_written(2, 4))
    assert (lab.partition.start_offset, lab.partition.archiving_count) == (5, 0)


def test_the_delivery_limit_makes_a_dead_letter_even_if_that_cannot_be_stored() -> None:
    lab = Lab(ShareSettings(dead_letter_topic="dlq.x", delivery_count_limit=1), batches=[10])
    lab.take()
    lab.now_ms += 30_000
    lab.store(lab.partition.expire(lab.now_ms), is_stored=False)
    assert lab.dead_letters == [(0, 9, 1, "delivery limit")]


def test_delivery_pauses_while_too_many_dead_letters_wait() -> None:
    lab = Lab(
        ShareSettings(dead_letter_topic="dlq.x", record_locks_max=20_000),
        batches=[1_000] * 20,
        timestamp_ms=1,
    )
    assert lab.take(10_000, batch_size=10_000) == [(0, 9_999, 1)]
    lab.say(0, 9_999, REJECT)
    assert lab.take() == []
    lab.store(lab.partition.dead_letter_written(0, 0))
    assert lab.take() == [(10_000, 10_999, 1)]


@pytest.mark.parametrize("topic", ["", "dlq.x"])
def test_records_that_are_too_old_are_not_delivered(topic: str) -> None:
    lab = Lab(ShareSettings(record_max_age_ms=1_000, dead_letter_topic=topic), batches=[10, 10])
    lab.spans[0] = lab.spans[0]._replace(max_timestamp_ms=lab.now_ms - 1_001)
    lab.spans[1] = lab.spans[1]._replace(max_timestamp_ms=lab.now_ms - 1_000)
    assert lab.take() == [(10, 19, 1)]
    assert lab.dead_letters == ([(0, 9, 0, "expired")] if topic else [])
    assert lab.partition.start_offset == (0 if topic else 10)


def test_a_paused_group_is_given_nothing() -> None:
    lab = Lab(ShareSettings(is_paused=True), batches=[10])
    assert lab.take() == []
    lab.partition.settings = ShareSettings()
    assert lab.take() == [(0, 9, 1)]


def test_the_breaker_pauses_delivery_for_its_window() -> None:
    lab = Lab(ShareSettings(breaker_ratio=0.5, breaker_window_ms=1_000), batches=[10, 10])
    lab.take(10)
    lab.say(0, 9, REJECT)
    assert not lab.partition.is_delivering(lab.now_ms)
    assert lab.take() == []
    assert lab.partition.next_deadline_ms() == lab.now_ms + 1_000
    assert lab.wait(1_000).wakes
    assert lab.take() == [(10, 19, 1)]


def test_what_was_compacted_away_is_archived() -> None:
    lab = Lab(batches=[10])
    lab.spans = [BatchSpan(3, 4), BatchSpan(8, 9), BatchSpan(12, 12)]
    lab.log_end = 20
    assert lab.take() == [(3, 4, 1), (8, 9, 1), (12, 12, 1)]
    assert lab.partition.start_offset == 3
    lab.say(3, 4, ACCEPT)
    assert lab.partition.start_offset == 8


def test_aborted_batches_are_archived() -> None:
    lab = Lab(batches=[10, 10, 10])
    lab.spans[1] = lab.spans[1]._replace(is_aborted=True)
    assert lab.take() == [(0, 9, 1), (20, 29, 1)]
    lab.say(0, 9, ACCEPT)
    assert lab.partition.start_offset == 20


def test_what_the_log_lost_is_done_whoever_held_it() -> None:
    lab = Lab(batches=[10, 10])
    lab.take()
    pending = lab.begin(0, 4, ACCEPT)
    change = lab.partition.log_start_moved(12)
    assert change.delta is not None
    assert change.delta.start_offset == 12
    lab.store(change)
    lab.store(pending)
    assert (lab.partition.start_offset, lab.partition.acquired_count) == (12, 8)
    assert lab.say(0, 19, ACCEPT) is None
    assert lab.partition.start_offset == 20
    assert lab.partition.log_start_moved(15).token == 0
    lab.store(lab.partition.log_start_moved(30))
    assert (lab.partition.start_offset, lab.partition.end_offset) == (30, 30)


def test_a_new_leader_goes_on_from_what_is_stored() -> None:
    state = stored(
        StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1),
        StateBatch(10, 14, RecordState.AVAILABLE, 2),
        StateBatch(20, 21, RecordState.ARCHIVING, 5),
        StateBatch(22, 22, RecordState.ARCHIVING, 1),
        StateBatch(23, 29, RecordState.ARCHIVED, 1),
        start=2,
    )
    lab = Lab(batches=[10, 10, 10, 10], state=state)
    assert [tuple(letter[:3]) for letter in lab.partition.waiting_dead_letters()] == [
        (20, 21, 5),
        (22, 22, 1),
    ]
    assert (lab.partition.start_offset, lab.partition.end_offset) == (2, 30)
    assert lab.partition.delivery_complete_count == 12
    assert lab.take() == [(2, 4, 1), (10, 14, 3), (15, 19, 1), (30, 39, 1)]


def test_runs_and_span_are_bounded() -> None:
    lab = Lab(ShareSettings(record_locks_max=30_000), batches=[30_000, 10])
    lab.take(30_000)
    ranges = [AckRange(offset, offset, ACCEPT) for offset in range(1, 20_001, 2)]
    change = lab.partition.acknowledge("a", ranges, lab.now_ms)
    assert not isinstance(change, MillraceError)
    lab.store(change)
    assert lab.take() == []

    lab = Lab(ShareSettings(record_locks_max=3_000_000), batches=[1, 2_000_000])
    lab.take(1)
    assert lab.take(2_000_000, mode=EXACT) == [(1, 999_999, 1)]
    assert lab.take() == []


def test_settings_count_from_when_they_are_set() -> None:
    lab = Lab(batches=[10, 10])
    lab.partition.settings = replace(lab.partition.settings, lock_duration_ms=5_000)
    lab.take()
    assert lab.partition.next_deadline_ms() == lab.now_ms + 5_000
