"""Answering no faster than an application reads: clients that have too much stop asking for a second."""

from __future__ import annotations

import pytest

from millrace.broker.network.pace import BURST_BYTES, FORGET_S, HOLD_MAX_S, Pace

MB = 1_000_000
HELD_MAX = 65_536_000
PAUSE_S = 1.0


class Client:
    """As librdkafka: asks again as soon as it has an answer, but for a second not at all when it holds too
    much. Its application takes `reads` bytes a second, and the broker could send `sends`."""

    def __init__(self, reads: float, sends: float = 1_500 * MB, answer_bytes: int = MB) -> None:
        self.reads = reads
        self.sends = sends
        self.answer_bytes = answer_bytes
        self.now = 100.0
        self.held = 0.0
        self.read = 0.0
        self.pauses = 0
        self.longest_hold_s = 0.0

    def _pass_time(self, seconds: float) -> None:
        taken = min(self.held, seconds * self.reads)
        self.held -= taken
        self.read += taken
        self.now += seconds

    def catch_up(self, pace: Pace | None, seconds: float) -> float:
        """How many bytes a second the application has got."""
        started, read_before = self.now, self.read
        while self.now - started < seconds:
            if pace is not None:
                hold_s = max(pace.hold_s(self.now), 0.0)
                self.longest_hold_s = max(self.longest_hold_s, hold_s)
                self._pass_time(hold_s)
                pace.sent(self.answer_bytes, self.now)
            self._pass_time(self.answer_bytes / self.sends)
            self.held += self.answer_bytes
            if self.held >= HELD_MAX:
                self.pauses += 1
                self._pass_time(PAUSE_S)
        return (self.read - read_before) / (self.now - started)


@pytest.mark.parametrize("reads", [150 * MB, 500 * MB, 1_200 * MB])
@pytest.mark.parametrize("answer_bytes", [MB, 10 * MB])
def test_an_application_slower_than_the_broker_gets_nearly_what_it_can_read(
    reads: int, answer_bytes: int
) -> None:
    without = Client(reads, answer_bytes=answer_bytes).catch_up(None, 30.0)
    with_pace = Client(reads, answer_bytes=answer_bytes).catch_up(Pace(100.0), 30.0)
    assert without < 0.6 * reads, "otherwise there is nothing to mend"
    assert with_pace > 0.8 * reads


def test_the_longer_it_goes_on_the_rarer_are_pauses() -> None:
    client, pace = Client(500 * MB), Pace(100.0)
    client.catch_up(pace, 60.0)
    first_minute, client.pauses = client.pauses, 0
    client.catch_up(pace, 600.0)
    assert client.pauses <= 10 * first_minute / 3


def test_an_application_that_gets_faster_is_followed() -> None:
    client, pace = Client(200 * MB), Pace(100.0)
    client.catch_up(pace, 5.0)
    client.reads = 600 * MB
    client.catch_up(pace, 120.0)
    assert client.catch_up(pace, 30.0) > 400 * MB


def test_who_does_not_pause_is_never_held_back() -> None:
    client, pace = Client(3_000 * MB), Pace(100.0)
    client.catch_up(pace, 10.0)
    assert client.longest_hold_s == 0
    assert pace.rate == 0


def test_a_hold_lasts_no_longer_than_what_was_sent_before_takes_to_be_read() -> None:
    client, pace = Client(100 * MB, answer_bytes=10 * MB), Pace(100.0)
    client.catch_up(pace, 30.0)
    assert 0 < client.longest_hold_s < 0.2


@pytest.mark.parametrize(
    "size_bytes, count, interval_s",
    [
        pytest.param(MB, 3, 0.001, id="little was sent"),
        pytest.param(MB, 40, 0.1, id="a slow network"),
    ],
)
def test_a_pause_of_another_kind_changes_nothing(size_bytes: int, count: int, interval_s: float) -> None:
    pace, now = Pace(100.0), 100.0
    for _ in range(count):
        assert pace.hold_s(now) <= 0
        pace.sent(size_bytes, now)
        now += interval_s
    assert pace.hold_s(now + 1.0) <= 0
    assert pace.rate == 0


def test_other_breaks_are_no_sign_of_haste() -> None:
    for gap in (0.5, 2.0, 60.0):
        pace, now = Pace(100.0), 100.0
        for _ in range(100):
            pace.sent(MB, now)
            now += 0.001
        pace.hold_s(now + gap)
        assert pace.rate == 0


def test_after_a_break_the_first_answers_leave_at_once() -> None:
    client, pace = Client(200 * MB), Pace(100.0)
    client.catch_up(pace, 5.0)
    assert pace.rate > 0
    now = client.now + 30.0
    sent = 0
    while pace.hold_s(now) <= 0:
        pace.sent(MB, now)
        sent += MB
    assert sent >= BURST_BYTES


class Worker:
    """Reads a batch as fast as it is sent, works on it for a second, and does not care how it came."""

    def __init__(self, batch_bytes: int, answer_bytes: int, works_s: float = 1.0) -> None:
        self.batch_bytes = batch_bytes
        self.answer_bytes = answer_bytes
        self.works_s = works_s
        self.now = 100.0

    def work(self, pace: Pace, batches: int) -> float:
        """How many seconds a batch took."""
        started = self.now
        for _ in range(batches):
            for _ in range(self.batch_bytes // self.answer_bytes):
                self.now += max(pace.hold_s(self.now), 0.0)
                pace.sent(self.answer_bytes, self.now)
                self.now += self.answer_bytes / (1_000 * MB)
            self.now += self.works_s
        return (self.now - started) / batches


@pytest.mark.parametrize(
    "batch_bytes, answer_bytes",
    [
        pytest.param(10 * MB, 10 * MB, id="one fetch of 10 MB"),
        pytest.param(50 * MB, 50 * MB, id="one fetch of 50 MB"),
        pytest.param(100 * MB, MB, id="a hundred fetches"),
        pytest.param(5_000 * MB, 10 * MB, id="seconds of reading"),
    ],
)
def test_an_application_that_works_for_a_second_on_each_batch_is_hardly_slowed_down(
    batch_bytes: int, answer_bytes: int
) -> None:
    worker = Worker(batch_bytes, answer_bytes)
    unpaced_s = batch_bytes / (1_000 * MB) + worker.works_s
    assert worker.work(Pace(100.0), 100) < 1.1 * unpaced_s


def test_a_hold_has_a_bound_whatever_was_sent() -> None:
    pace = Pace(100.0)
    pace.sent(10 * MB, 100.0)
    pace.hold_s(101.0)
    assert 0 < pace.rate < 10 * MB
    for _ in range(10):
        pace.sent(50 * MB, 101.0)
    assert pace.hold_s(101.0) <= HOLD_MAX_S


def test_one_who_reads_at_the_end_of_the_log_is_not_taken_for_one_who_pauses() -> None:
    """It gets a second's records at once, and its next request waits for those of the next second."""
    pace, now = Pace(100.0), 100.0
    for _ in range(10):
        for _ in range(40):
            assert pace.hold_s(now) <= 0
            pace.sent(MB, now)
            now += 0.001
        pace.hold_s(now)
        now += 1.0
        pace.caught_up(now)
        assert pace.hold_s(now + 0.001) <= 0
    assert pace.rate == 0


def test_breaks_do_not_keep_a_pace_from_being_raised() -> None:
    client, pace = Client(100 * MB), Pace(100.0)
    client.catch_up(pace, 5.0)
    before, now = pace.rate, client.now
    assert before > 0
    for _ in range(300):
        now += 0.5
        now += max(pace.hold_s(now), 0.0)
        pace.sent(MB, now)
    assert pace.rate > 2 * before


def test_a_pace_is_forgotten_with_the_time() -> None:
    client, pace = Client(100 * MB), Pace(100.0)
    client.catch_up(pace, 5.0)
    assert pace.rate > 0
    pace.hold_s(client.now + 2 * FORGET_S)
    assert pace.rate == 0
