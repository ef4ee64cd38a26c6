"""Connections over a rate: those of an address are refused, those of a listener and the broker wait."""

from __future__ import annotations

import pytest

from millrace.security.quotas import connection_rate
from millrace.security.quotas.connection_rate import Admission, ConnectionRates


def rates(
    *, address: float | None = None, broker: float | None = None, protected: str | None = None
) -> ConnectionRates:
    return ConnectionRates(
        lambda ip: address if ip == "limited" else None, broker_rate=broker, protected_listener=protected
    )


def admit_many(found: ConnectionRates, count: int, address: str = "a") -> list[Admission]:
    return [found.admit("L", address, 0) for _ in range(count)]


def test_without_limits_everybody_is_taken() -> None:
    assert set(admit_many(rates(), 1_000)) == {Admission()}


def test_an_address_over_its_rate_is_refused_after_a_second_at_most() -> None:
    found = rates(address=1)
    admissions = admit_many(found, 12, "limited")
    assert admissions[:10] == [Admission()] * 10, "ten seconds' worth at once"
    assert [admission.is_refused for admission in admissions[10:]] == [True, True]
    assert admissions[10].delay_ms == 1_000
    assert found.admit("L", "other", 0) == Admission()
    assert found.admit("L", "limited", 11_000) == Admission()


def test_who_is_refused_does_not_count_for_others() -> None:
    found = rates(address=1, broker=2)
    admit_many(found, 1_000, "limited")
    assert admit_many(found, 10, "other")[-1] == Admission()
    assert admit_many(found, 1, "other")[0].delay_ms > 0


def test_over_the_rate_of_the_broker_or_the_listener_the_next_wait() -> None:
    found = rates(broker=1)
    last = admit_many(found, 12)[-1]
    assert not last.is_refused
    assert last.delay_ms == 1_000
    found = rates()
    found.listener_rates["L"] = 1
    assert admit_many(found, 12)[-1].delay_ms == 1_000
    assert found.admit("M", "a", 0) == Admission()


def test_the_brokers_own_listener_is_not_held_up_by_clients() -> None:
    found = rates(broker=1, protected="B")
    assert admit_many(found, 20)[-1].delay_ms > 0
    assert found.admit("B", "a", 0) == Admission()


def test_addresses_that_fell_silent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_rate, "ADDRESSES_MAX", 5)
    found = ConnectionRates(lambda _: 1.0)
    for number in range(50):
        found.admit("L", f"10.0.0.{number}", number * 5_000)
    assert len(found._addresses) <= 5
