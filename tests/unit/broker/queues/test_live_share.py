"""One share partition: ranges of acknowledgements, who is woken, what is stored. How it serves members is in
`tests/unit/broker/handlers/queues`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.queues import live_share
from millrace.broker.queues.batch_headers import Found, FoundBatch
from millrace.broker.queues.live_share import (
    LiveShare,
    ShareFenced,
    ShareStats,
    _touched,
    ack_ranges,
    as_told,
)
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acknowledging import AckRange
from millrace.queues.share_partition.acquiring import BatchSpan
from millrace.queues.share_partition.changes import AcquiredRun, DeadLetter, Stop
from millrace.queues.share_partition.model import AcknowledgeType, AcquireMode, Delta, ShareKey, StoredState
from millrace.queues.share_partition.partition import SharePartition
from millrace.queues.state.errors import LeaderEpochFenced, StateEpochFenced, UnknownSharePartition
from millrace.wire.share_codec import AckBatch

KEY = ShareKey("g", TopicId(bytes(16)), 0)
GAP, ACCEPT, RELEASE = AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def ranges(*acks: tuple[int, int, bytes], start: int = 0, end: int = 100) -> list[AckRange]:
    return list(ack_ranges([AckBatch(*each) for each in acks], start, end))


def test_types_that_are_the_same_are_one_range() -> None:
    assert ranges((0, 5, b"\1\1\2\2\0\1"), (7, 9, b"\2")) == [
        AckRange(0, 1, ACCEPT),
        AckRange(2, 3, RELEASE),
        AckRange(4, 4, GAP),
        AckRange(5, 5, ACCEPT),
        AckRange(7, 9, RELEASE),
    ]


def test_line_ends_are_types_like_others() -> None:
    # Type 10 is refused before, and must not hide what is behind it.
    with pytest.raises(IndexError):
        ranges((0, 2, b"\1\n\1"))


def test_what_is_done_is_left_out() -> None:
    assert ranges((0, 9, b"\1"), (10, 13, b"\1\1\2\2"), (14, 15, b"\1"), start=12) == [
        AckRange(12, 13, RELEASE),
        AckRange(14, 15, ACCEPT),
    ]


def test_what_was_never_delivered_is_one_range_for_the_rules_to_refuse() -> None:
    types = b"\1\2" * 50_000
    assert ranges((50, 50 + len(types) - 1, types), end=60) == [AckRange(50, 100_049, ACCEPT)]
    assert ranges((50, 2**62, b"\1"), end=60) == [AckRange(50, 2**62, ACCEPT)]


@pytest.mark.parametrize(
    "error, expected",
    [
        (LeaderEpochFenced(KEY, 1, current=2), ShareFenced),
        (StateEpochFenced(KEY, 1, current=2), ShareFenced),
        (NotCoordinator("state-0"), CoordinatorNotAvailable),
        (CoordinatorLoading("state-0"), CoordinatorNotAvailable),
        (UnknownSharePartition(KEY), UnknownSharePartition),
    ],
)
def test_clients_are_told_of_leaders_and_not_of_state(
    error: MillraceError, expected: type[MillraceError]
) -> None:
    assert type(as_told(KEY, error)) is expected


def batch(first: int, last: int) -> FoundBatch:
    return FoundBatch(first, last, 0, 100, first, cast("Any", None), None, -1, False)


@pytest.mark.parametrize(
    "acquired, expected",
    [
        ([(0, 9)], [0, 2, 4, 6, 8]),
        ([(3, 3)], [2]),
        ([(1, 2), (8, 8)], [0, 2, 8]),
        ([(9, 9)], [8]),
    ],
)
def test_batches_that_hold_nothing_for_the_member_stay(
    acquired: list[tuple[int, int]], expected: list[int]
) -> None:
    batches = [batch(first, first + 1) for first in range(0, 10, 2)]
    found = _touched(batches, [AcquiredRun(first, last, 1) for first, last in acquired])
    assert [each.first_offset for each in found] == expected


class Store:
    def __init__(self) -> None:
        self.written: list[Delta] = []
        self.answers: list[asyncio.Future[MillraceError | None]] = []
        self.is_late = False

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState | MillraceError:
        raise AssertionError((key, leader_epoch))

    def write(self, key: ShareKey, *, state_epoch: int, leader_epoch: int, delta: Delta) -> Any:
        assert (key, state_epoch, leader_epoch) == (KEY, 3, 5)
        self.written.append(delta)
        if not self.is_late:
            return None
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Home:
    def __init__(self) -> None:
        self.store: Any = Store()
        self.time_ms = 1_000
        self.armed: list[int] = []
        self.ended: list[MillraceError] = []
        self.letters: list[DeadLetter] = []
        self.stops: list[Stop] = []

    def now_ms(self) -> int:
        return self.time_ms

    def arm(self, _share: LiveShare, deadline_ms: int) -> None:
        self.armed.append(deadline_ms)

    def fenced(self, share: LiveShare, error: MillraceError) -> None:
        self.ended.append(error)
        share.end(error)

    def give_up(self, _share: LiveShare, letters: Sequence[DeadLetter], *, is_again: bool = False) -> None:
        self.letters += letters

    def letters_written(self, _share: LiveShare) -> None:
        self.letters.clear()

    def stopped(self, stop: Stop) -> None:
        self.stops.append(stop)


class Waiter:
    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.woken = 0
        self.judged = 0

    def wake(self) -> None:
        self.woken += 1

    def permissions_changed(self) -> None:
        self.judged += 1


class FakePartition(SimpleNamespace):
    """A partition that this broker leads, with offsets 0 to 9."""

    def __init__(self) -> None:
        log = SimpleNamespace(high_watermark=10, log_start_offset=0)
        super().__init__(log=log, leader_epoch=5, is_leader=True, fetch_waiters={}, last_stable_offset=7)


def live(home: Home, settings: ShareSettings | None = None) -> LiveShare:
    share = LiveShare(KEY, cast("Any", FakePartition()), home, ShareStats())
    share.begin(SharePartition(settings or ShareSettings(), StoredState(3, 0, 0, ()), lambda: 0.5), 3)
    return share


def test_only_the_first_who_waits_is_woken_and_passes_on() -> None:
    share = live(Home())
    waiters = [Waiter(f"m{number}") for number in range(3)]
    for waiter in waiters:
        share.add_waiter(waiter)
    assert list(share.partition.fetch_waiters) == [share]
    share.more_records(1)
    assert [waiter.woken for waiter in waiters] == [1, 0, 0]
    share.remove_waiter(waiters[0])
    share.pass_on(waiters[0])
    assert [waiter.woken for waiter in waiters] == [1, 1, 0]
    # There is nothing left.
    share.partition.log.high_watermark = 0
    share.pass_on(waiters[1])
    assert [waiter.woken for waiter in waiters] == [1, 1, 0]
    for waiter in waiters:
        share.remove_waiter(waiter)
    assert not share.partition.fetch_waiters


def test_who_has_too_little_and_goes_on_waiting_asks_only_those_behind_it() -> None:
    share = live(Home())
    waiters = [Waiter("m1"), Waiter("m2"), Waiter("m3")]
    for waiter in waiters:
        share.add_waiter(waiter)
    share.more_records(1)
    # None of them takes anything: each wants more bytes than there are.
    for waiter in waiters:
        share.pass_on(waiter)
    assert [waiter.woken for waiter in waiters] == [1, 1, 1]


def test_readers_of_committed_records_stop_at_the_last_stable_offset() -> None:
    assert live(Home()).limit_offset == 10
    assert live(Home(), ShareSettings(reads_committed=True)).limit_offset == 7


def test_whoever_leads_no_more_tells_all_who_wait() -> None:
    home = Home()
    share = live(home)
    waiters = [Waiter("m1"), Waiter("m2")]
    for waiter in waiters:
        share.add_waiter(waiter)
    share.changed()
    assert not home.ended
    share.partition.leader_epoch = 6
    share.changed()
    assert [type(error) for error in home.ended] == [ShareFenced]
    assert [waiter.woken for waiter in waiters] == [2, 1]
    assert not share.partition.fetch_waiters


def test_permissions_are_judged_for_all_who_wait() -> None:
    share = live(Home())
    waiters = [Waiter("m1"), Waiter("m2")]
    for waiter in waiters:
        share.add_waiter(waiter)
    share.permissions_changed()
    assert [waiter.judged for waiter in waiters] == [1, 1]


def test_a_log_that_begins_later_is_heeded() -> None:
    home = Home()
    share = live(home)
    share.partition.log.log_start_offset = 4
    share.changed()
    assert share.rules is not None
    assert share.rules.start_offset == 4
    assert home.store.written[-1].start_offset == 4


def test_a_look_ends_although_nothing_is_left_of_what_it_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def find(*_where: object, **_limits: object) -> Found:
        looks.append(1)
        return Found((), 0, 0, None, [(0, 0)])

    monkeypatch.setattr(live_share, "find_batches", find)
    monkeypatch.setattr(LiveShare, "_archive", lambda _share, _missing: None)
    assert live(Home()).look("m", records_max=1, bytes_max=1) is None
    assert len(looks) == live_share.LOOKS_MAX + 1


def test_it_is_counted_once_that_delivery_stops(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    home = Home()
    share = live(home, ShareSettings(breaker_ratio=0.5, breaker_window_ms=1_000))
    assert share.rules is not None
    span = BatchSpan(0, 9, home.time_ms)
    share.rules.acquire(
        "m",
        [span],
        ranges=[(0, 9)],
        records_max=10,
        batch_size=10,
        mode=AcquireMode.BATCH_OPTIMIZED,
        now_ms=home.time_ms,
    )
    share.acknowledge("m", [AckBatch(0, 8, b"\3")])
    assert (home.stops, share.stop) == ([], None)
    share.acknowledge("m", [AckBatch(9, 9, b"\3")])
    assert (home.stops, share.stop) == ([Stop.BREAKER], Stop.BREAKER)
    home.time_ms += 1_000
    share.expire()
    assert (home.stops, share.stop) == ([Stop.BREAKER], None)
    assert ["stops for" in line or "goes on" in line for line in caplog.messages] == [True, True]


def test_acknowledgements_while_the_state_is_read_are_refused() -> None:
    share = LiveShare(KEY, cast("Any", FakePartition()), Home(), ShareStats())
    assert isinstance(share.acknowledge("m", [AckBatch(0, 0, b"\1")]), CoordinatorNotAvailable)
    share.release("m", in_order=True)
    share.expire()


@pytest.mark.parametrize("error", [None, LeaderEpochFenced(KEY, 5, current=6), MillraceError("no")])
def test_the_outcome_of_a_write_is_heard(error: MillraceError | None) -> None:
    async def main() -> None:
        home = Home()
        home.store.is_late = True
        share = live(home)
        share.partition.log.log_start_offset = 4
        share.changed()
        home.store.answers[0].set_result(error)
        await asyncio.sleep(0)
        assert bool(home.ended) == isinstance(error, LeaderEpochFenced)

    asyncio.run(main())
