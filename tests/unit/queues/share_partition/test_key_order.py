from __future__ import annotations

from array import array
from collections.abc import Sequence

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.changes import AcquiredRun
from millrace.queues.share_partition.key_order import KEYED_RECORDS_MAX, NO_KEY, KeyOrder
from millrace.queues.share_partition.model import AcquireMode
from millrace.queues.share_partition.runs import ACKNOWLEDGED, FRESH, Runs
from tests.unit.queues.share_partition.lab import ACCEPT, RELEASE, Lab

A, B, C = 11, 22, 33


class KeyedLab(Lab):
    """One batch with these keys."""

    def __init__(self, keys: Sequence[int], **settings: int) -> None:
        super().__init__(ShareSettings(is_ordered_by_key=True, **settings), batches=[len(keys)])  # type: ignore[arg-type]
        self.keys = array("q", keys)

    def offsets(self, member: str = "a", records_max: int = 500) -> list[int]:
        for span in self.partition.unlearned(self.spans):
            self.partition.learn_keys(span.first_offset, self.keys)
        runs = self.acquire(records_max, member=member, batch_size=500, mode=AcquireMode.BATCH_OPTIMIZED).runs
        return [offset for run in runs for offset in _range(run)]


def _range(run: AcquiredRun) -> range:
    return range(run.first_offset, run.last_offset + 1)


def test_one_record_of_a_key_is_in_flight_and_others_overtake_it() -> None:
    lab = KeyedLab([A, A, B, NO_KEY, A, NO_KEY, B, C])
    assert lab.offsets() == [0, 2, 3, 5, 7]
    assert lab.offsets("b") == []
    lab.say(2, 2, ACCEPT)
    assert lab.offsets("b") == [6]
    lab.say(0, 0, ACCEPT)
    assert lab.offsets("b") == [1]


def test_a_key_waits_until_the_acknowledgement_is_stored() -> None:
    lab = KeyedLab([A, A])
    assert lab.offsets() == [0]
    change = lab.begin(0, 0, ACCEPT)
    assert lab.offsets("b") == []
    lab.store(change)
    assert lab.offsets("b") == [1]


def test_a_released_record_comes_before_the_next_of_its_key_even_if_it_has_to_wait() -> None:
    lab = KeyedLab([A, A, B], retry_backoff_ms=1_000)
    assert lab.offsets(records_max=1) == [0]
    lab.say(0, 0, RELEASE)
    assert lab.offsets() == [2]
    lab.wait(1_000)
    assert lab.offsets() == [0]


def test_what_the_log_lost_blocks_nobody() -> None:
    lab = KeyedLab([A, A, A])
    assert lab.offsets() == [0]
    lab.store(lab.partition.log_start_moved(2))
    assert lab.offsets("b") == [2]


def test_records_that_were_skipped_hold_the_window_in_bounds() -> None:
    lab = KeyedLab([A] * KEYED_RECORDS_MAX)
    lab.spans.append(lab.spans[0]._replace(first_offset=lab.log_end, last_offset=lab.log_end + 9))
    lab.log_end += 10
    assert lab.offsets() == [0]
    assert lab.partition.candidates("b", lab.now_ms, limit_offset=lab.log_end, records_max=500) == []
    assert lab.partition.unlearned(lab.spans) == []


def test_order_may_be_wanted_and_given_up_while_records_are_in_flight() -> None:
    lab = KeyedLab([A, A, B, B])
    lab.partition.settings = ShareSettings()
    assert lab.take(1, mode=AcquireMode.RECORD_LIMIT) == [(0, 0, 1)]
    lab.partition.settings = ShareSettings(is_ordered_by_key=True)
    assert lab.offsets("b") == [2]
    lab.partition.settings = ShareSettings()
    assert lab.take() == [(1, 1, 1), (3, 3, 1)]


def test_a_chain_passes_over_what_is_done() -> None:
    runs = Runs(0)
    runs.append(3, FRESH)
    order = KeyOrder(runs, 0)
    order.learn(0, array("q", [A, A, A, NO_KEY]))
    runs.paint(1, 1, ACKNOWLEDGED)
    order.turned(1, 1, ACKNOWLEDGED)
    assert order.ready(10) == [0, 3]
    runs.paint(0, 0, ACKNOWLEDGED)
    order.turned(0, 0, ACKNOWLEDGED)
    assert order.ready(10) == [2, 3]
    order.cut_below(4)
    assert (order.records, order.ready(10)) == (0, [])
