"""The rate is Kafka's, sample by sample: compared with its rules written down without any shortcut."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.security.quotas.rates import (
    SAMPLE_MS,
    SAMPLES,
    WINDOW_MS,
    Rate,
    bounded_throttle_ms,
    largest_unthrottled,
    percentage,
)


@dataclass
class Sample:
    start_ms: int
    last_ms: int
    value: float = 0


@dataclass
class Model:
    """A ring of one sample more than counts; whatever was silent for a window begins anew."""

    samples: list[Sample] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, now_ms: int) -> None:
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        if now_ms - self.samples[self.current].start_ms >= SAMPLE_MS:
            self.current = (self.current + 1) % (SAMPLES + 1)
            if self.current >= len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            else:
                self.samples[self.current] = Sample(now_ms, now_ms)
        self.samples[self.current].value += value
        self.samples[self.current].last_ms = now_ms

    def window_ms(self, now_ms: int) -> int:
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        self.samples = [
            Sample(now_ms, now_ms) if now_ms - sample.last_ms >= WINDOW_MS else sample
            for sample in self.samples
        ]
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.samples)
        whole = elapsed_ms // SAMPLE_MS
        if whole < SAMPLES - 1:
            elapsed_ms += (SAMPLES - 1 - whole) * SAMPLE_MS
        return elapsed_ms

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        window_ms = self.window_ms(now_ms)
        observed = sum(sample.value for sample in self.samples) / window_ms * 1000
        return 0 if observed <= bound else math.floor((observed - bound) / bound * window_ms + 0.5)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 300), st.integers(0, 3_000), st.integers(9_000, 30_000)),
            st.integers(-50, 2_000),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_throttle_times_are_those_of_the_rules(steps: list[tuple[int, int, bool]]) -> None:
    rate, model, now_ms = Rate(), Model(), 1_000_000
    for after_ms, value, is_judged in steps:
        now_ms += after_ms
        rate.record(value, now_ms)
        model.record(value, now_ms)
        if is_judged:
            assert rate.window_ms(now_ms) == model.window_ms(now_ms)
            assert rate.throttle_ms(100, now_ms) == model.throttle_ms(100, now_ms)


def test_a_burst_of_ten_seconds_is_free_and_more_waits_for_as_long_as_it_is_too_much() -> None:
    rate = Rate()
    rate.record(1_000, 0)
    assert rate.throttle_ms(100, 0) == 0
    assert rate.per_second(0) == pytest.approx(100)
    rate.record(500, 0)
    assert rate.throttle_ms(100, 0) == 5_000
    assert largest_unthrottled(100) == 1_000


def test_what_did_not_happen_is_taken_back() -> None:
    rate = Rate()
    rate.record(900, 0)
    rate.record(700, 10)
    assert rate.throttle_ms(100, 10) > 0
    rate.record(-700, 10)
    assert rate.throttle_ms(100, 10) == 0


def test_a_rate_is_forgotten_after_a_window_of_silence() -> None:
    rate = Rate()
    assert rate.is_silent(0)
    assert rate.per_second(0) == 0
    rate.record(9_000, 0)
    assert not rate.is_silent(WINDOW_MS - 1)
    assert rate.is_silent(WINDOW_MS)
    assert rate.per_second(WINDOW_MS) == 0


def test_the_usual_call_touches_the_present_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = Rate()
    for second in range(20):
        rate.record(1, second * SAMPLE_MS)
    looked_over = 0
    real = Rate._look_over

    def look_over(self: Rate) -> None:
        nonlocal looked_over
        looked_over += 1
        real(self)

    monkeypatch.setattr(Rate, "_look_over", look_over)
    for _ in range(1_000):
        rate.record(1, 19_500)
        rate.throttle_ms(1_000_000, 19_500)
    assert looked_over <= 1


def test_request_time_is_a_share_of_one_core_and_waits_a_second_at_most() -> None:
    assert percentage(0.5) == 50
    assert bounded_throttle_ms(30_000) == SAMPLE_MS
    assert bounded_throttle_ms(3) == 3
