"""Clients that share a limit share a meter; those without a limit have none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.quotas import meters as module
from millrace.security.quotas.entities import entity
from millrace.security.quotas.meters import Meter, Meters
from millrace.security.quotas.precedence import QuotaTable
from millrace.security.quotas.rates import Rate

IN, TIME = "producer_byte_rate", "request_percentage"


def meters(bound: float = 100.0, brokers: int = 1) -> Meters:
    found = Meters()
    found.replace(
        QuotaTable([(entity(user="me"), {IN: bound, TIME: 1.0}), (entity(tenant="t"), {IN: 7.0})]),
        brokers=brokers,
    )
    return found


def test_clients_of_a_user_share_what_the_user_has() -> None:
    found = meters()
    one, other = found.of_client(IN, "me", "a", 0), found.of_client(IN, "me", "b", 0)
    assert one is other
    assert one is not None
    assert one.record(1_000, 0) == 0
    assert one.record(500, 0) == 5_000
    assert found.of_client(IN, "you", "a", 0) is None
    assert Meters().of_client(IN, "me", "a", 0) is None


def test_what_a_fetch_did_not_get_is_taken_back() -> None:
    meter = meters().of_client(IN, "me", "a", 0)
    assert meter is not None
    assert meter.largest_unthrottled == 1_000
    assert meter.record(1_500, 0) > 0
    meter.take_back(1_500, 0)
    assert meter.record(1_000, 0) == 0


def test_another_limit_counts_with_what_was_recorded() -> None:
    found = meters()
    meter = found.of_client(IN, "me", "a", 0)
    assert meter is not None
    assert meter.record(1_000, 0) == 0
    found.replace(QuotaTable([(entity(user="me"), {IN: 50.0})]))
    again = found.of_client(IN, "me", "a", 0)
    assert again is meter
    assert again.record(0, 0) == 10_000


def test_request_time_waits_a_second_at_most() -> None:
    meter = meters().of_client(TIME, "me", "a", 0)
    assert meter is not None
    assert meter.record(1_000_000, 0) == 1_000


def test_a_limit_of_the_cluster_is_divided() -> None:
    meter = meters(brokers=4).of_client(IN, "me", "a", 0)
    assert meter is not None
    assert meter.bound == 25


def test_a_tenant_has_a_meter_of_its_own() -> None:
    found = meters()
    tenant = found.of_tenant(IN, "t", 0)
    assert tenant is not None
    assert tenant.bound == 7
    assert tenant is not found.of_client(IN, "me", "a", 0)
    assert found.of_tenant(IN, "other", 0) is None


def test_meters_that_fell_silent_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METERS_MAX", 5)
    found = Meters()
    found.replace(QuotaTable([(entity(user=None), {IN: 1.0})]))
    for number in range(50):
        meter = found.of_client(IN, f"user-{number}", "", number * 5_000)
        assert meter is not None
        meter.record(1, number * 5_000)
        assert meter.is_silent(number * 5_000 + 11_000)
    assert len(found._meters) <= 5


def test_changes_of_the_cluster_are_taken_from_a_bucket_that_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "METERS_MAX", 3)
    rate = "controller_mutation_rate"
    found = Meters()
    assert found.mutations_of("me", "a", 0) is None
    found.replace(QuotaTable([(entity(user=None), {rate: 10.0})]), brokers=2)
    bucket = found.mutations_of("me", "a", 0)
    assert bucket is not None
    assert found.mutations_of("me", "b", 0) is bucket
    assert bucket.take(200, 0) == 0
    assert bucket.take(1, 0) > 0
    for number in range(20):
        assert found.mutations_of(f"user-{number}", "", 0) is not None
    assert len(found._buckets) <= 3
    assert found.mutations_of("me", "a", 0) is bucket, "who is in debt is not forgotten"
    found.replace(QuotaTable([(entity(user=None), {rate: 100.0})]))
    again = found.mutations_of("me", "a", 0)
    assert again is bucket
    assert again.rate == 100


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1_500), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([1.0, 33.0, 500.0]),
)
def test_what_is_noted_between_two_judgements_counts_as_if_it_were_judged_each_time(
    steps: list[tuple[int, int, bool]], bound: float
) -> None:
    meter, plain = Meter(bound, is_capped=False), Rate()
    now_ms = 5
    for value, pause_ms, is_taken_back in steps:
        now_ms += pause_ms
        plain.record(value, now_ms)
        assert meter.record(value, now_ms) == plain.throttle_ms(bound, now_ms)
        if is_taken_back:
            plain.record(-value, now_ms)
            meter.take_back(value, now_ms)
    assert meter.per_second(now_ms) == pytest.approx(plain.per_second(now_ms))
    assert meter.is_silent(now_ms + 11_000)


def test_figures_are_of_those_who_were_not_silent() -> None:
    found = meters()
    meter = found.of_client(IN, "me", "a", 0)
    assert meter is not None
    meter.record(500, 0)
    assert [(key, bucket.user, rate, bound) for key, bucket, rate, bound in found.figures(0)] == [
        (IN, "me", 50.0, 100.0)
    ]
    assert list(found.figures(20_000)) == []
