"""The quota of replication: the rate holds over time whatever the batches, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.replica.quota import SAVED_UP_S, WAIT_S, ReplicationQuota


def quota(rate: int, now_s: float = 0.0) -> ReplicationQuota:
    made = ReplicationQuota()
    made.set_rate(rate, now_s)
    return made


def test_without_a_rate_there_is_no_limit() -> None:
    assert not ReplicationQuota().is_limited
    assert quota(5).is_limited


def test_it_begins_with_a_full_bucket_and_saves_up_no_more_than_that() -> None:
    bucket = quota(1_000)
    assert bucket.available(0.0) == 1_000
    assert bucket.available(60.0) == 1_000 * SAVED_UP_S
    bucket.take(600)
    assert bucket.available(60.0) == 400
    assert bucket.available(60.5) == 900


def test_a_batch_larger_than_the_rate_is_paid_for_later() -> None:
    bucket = quota(1_000)
    bucket.take(5_000)
    assert bucket.available(3.9) == 0
    assert bucket.available(4.1) > 0


def test_who_waits_finds_something_worth_taking() -> None:
    bucket = quota(1_000)
    bucket.take(1_500)
    wait_s = bucket.wait_s(10.0)
    assert wait_s == 0.0, "time has paid long ago"
    bucket.take(1_500)
    wait_s = bucket.wait_s(10.0)
    assert 0.5 < wait_s <= 0.5 + WAIT_S
    assert bucket.available(10.0 + wait_s + 0.001) >= 1_000 * WAIT_S


def test_what_was_not_used_is_given_back() -> None:
    bucket = quota(1_000)
    bucket.take(1_000)
    bucket.give_back(700)
    assert bucket.available(0.0) == 700
    bucket.give_back(5_000)
    assert bucket.available(0.0) == 1_000


def test_a_lower_rate_does_not_make_an_old_debt_endless() -> None:
    bucket = quota(1_000_000)
    bucket.take(11_000_000)
    bucket.set_rate(1_000, 0.0)
    assert bucket.wait_s(0.0) <= SAVED_UP_S + WAIT_S


@given(
    rate=st.integers(1, 10_000_000),
    batches=st.lists(st.integers(1, 20_000_000), min_size=1, max_size=50),
)
def test_taking_whenever_allowed_keeps_the_rate(rate: int, batches: list[int]) -> None:
    bucket = quota(rate)
    now_s, taken = 0.0, 0
    for size in batches:
        waited = 0
        while bucket.available(now_s) == 0:
            # A hair more than said: adding up fractions may lose one.
            now_s += bucket.wait_s(now_s) * (1 + 1e-9) + 1e-6
            waited += 1
            assert waited < 100, "it is never far away"
        # Whatever was taken before is what the rate allows by now.
        assert taken <= rate * (now_s + SAVED_UP_S) + 1
        bucket.take(size)
        taken += size
