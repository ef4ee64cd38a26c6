"""Bursts are granted until there is a debt, and then nothing is until it is paid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.security.quotas.token_bucket import BURST_S, TokenBucket


def test_what_is_asked_for_is_granted_while_anything_is_left() -> None:
    """As in Kafka, where 90 and 90 are granted of 110, and the third request waits."""
    bucket = TokenBucket(10, 0)
    assert bucket.tokens(0) == 10 * BURST_S == 110
    assert bucket.take(90, 0) == 0
    assert bucket.take(90, 0) == 0
    assert bucket.take(1, 0) == 7_000
    assert bucket.tokens(0) == -70
    assert bucket.take(1, 6_999) == 1
    assert bucket.take(1, 7_000) == 0


def test_older_requests_are_granted_always_and_wait_afterwards() -> None:
    bucket = TokenBucket(10, 0)
    assert bucket.take_anyway(110, 0) == 0
    assert bucket.take_anyway(20, 0) == 2_000
    assert bucket.take_anyway(10, 1_000) == 2_000


def test_a_bucket_does_not_overflow_and_follows_its_rate() -> None:
    bucket = TokenBucket(10, 0)
    assert bucket.tokens(1_000_000) == 110
    bucket.change_rate(1, 1_000_000)
    assert bucket.tokens(1_000_000) == 11
    bucket.change_rate(100, 1_000_000)
    assert bucket.tokens(1_000_000) == 11, "what is left stays"
    assert bucket.tokens(1_001_000) == 111


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 200)), max_size=40))
def test_over_time_no_more_is_granted_than_the_rate_and_two_bursts(steps: list[tuple[int, int]]) -> None:
    bucket, now_ms, granted, largest = TokenBucket(10, 0), 0, 0, 0
    for after_ms, count in steps:
        now_ms += after_ms
        if bucket.take(count, now_ms) == 0:
            granted += count
            largest = max(largest, count)
    assert granted <= 10 * now_ms / 1000 + 110 + largest
