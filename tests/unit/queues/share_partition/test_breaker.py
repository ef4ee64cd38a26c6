from __future__ import annotations

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.breaker import Breaker

SETTINGS = ShareSettings(breaker_ratio=0.5, breaker_window_ms=1_000)


def test_it_opens_when_more_than_the_share_is_given_up() -> None:
    breaker = Breaker()
    assert not breaker.count(SETTINGS, ended=10, given_up=0, now_ms=10_000)
    assert not breaker.count(SETTINGS, ended=10, given_up=10, now_ms=10_000)
    assert breaker.count(SETTINGS, ended=1, given_up=1, now_ms=10_100)
    assert breaker.open_until_ms == 11_100


def test_a_few_failures_do_not_open_it() -> None:
    assert not Breaker().count(SETTINGS, ended=9, given_up=9, now_ms=10_000)


def test_what_happened_before_the_window_is_forgotten() -> None:
    breaker = Breaker()
    breaker.count(SETTINGS, ended=9, given_up=9, now_ms=10_000)
    assert not breaker.count(SETTINGS, ended=9, given_up=9, now_ms=11_000)


def test_half_a_window_is_remembered() -> None:
    breaker = Breaker()
    breaker.count(SETTINGS, ended=9, given_up=9, now_ms=10_000)
    assert breaker.count(SETTINGS, ended=9, given_up=9, now_ms=10_600)
