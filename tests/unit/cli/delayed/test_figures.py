"""The figures of all brokers together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.cli import clients
from millrace.cli.delayed import figures
from tests.unit.cli.fakes import ADDRESS

PAGE = """# TYPE millrace_delayed_pending gauge
millrace_delayed_pending 1.0e+07
millrace_delayed_next_due_timestamp_seconds {due}
millrace_delayed_delivered_total 100.0
millrace_delayed_cancelled_total 2.0
millrace_delayed_dropped_total 3.0
millrace_delayed_lateness_seconds_bucket{{le="0.05"}} 40.0
millrace_delayed_lateness_seconds_bucket{{le="0.1"}} 60.0
millrace_delayed_lateness_seconds_bucket{{le="+Inf"}} 100.0
millrace_other 5.0
"""


def test_brokers_are_summed_and_the_earliest_is_next() -> None:
    told = figures.summed([PAGE.format(due="0.0"), PAGE.format(due="9.5")])
    assert told == figures.DelayedStatus(20_000_000, 9_500, 200, 4, 6, (0.1, None))


def test_where_nothing_was_delivered_nothing_was_late() -> None:
    assert figures.summed([""]) == figures.DelayedStatus(0, None, 0, 0, 0, (None, None))


def test_all_brokers_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"http://a": PAGE.format(due="1.0"), "http://b": None}
    monkeypatch.setattr(figures, "_page", pages.__getitem__)
    assert figures.status_at(["http://a", "http://b"]) is None
    assert figures.status_at(["http://a"]) is not None
    assert figures.status_at([]) is None


def test_all_brokers_must_have_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {each: SimpleNamespace(id=each, host=f"h{each}") for each in (1, 2)}
    monkeypatch.setattr(clients, "admin_client", lambda _: None)
    monkeypatch.setattr(clients, "cluster_metadata", lambda *_: SimpleNamespace(brokers=brokers))
    monkeypatch.setattr(figures, "url_of", lambda _admin, _address, _number, host: f"http://{host}:1")
    assert figures.urls_of(ADDRESS) == ["http://h1:1", "http://h2:1"]
    monkeypatch.setattr(
        figures, "url_of", lambda _admin, _address, number, _host: "u" if number == 1 else None
    )
    assert figures.urls_of(ADDRESS) is None
