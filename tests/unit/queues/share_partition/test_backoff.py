from __future__ import annotations

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.backoff import not_before_ms

SETTINGS = ShareSettings(retry_backoff_ms=100, retry_backoff_max_ms=1_000)


def _wait(count: int, jitter: float = 0.5) -> int:
    return not_before_ms(SETTINGS, count, now_ms=5_000, jitter=lambda: jitter) - 5_000


def test_the_wait_doubles_up_to_the_greatest() -> None:
    assert [_wait(count) for count in (1, 2, 3, 4, 5, 1_000)] == [100, 200, 400, 800, 1_000, 1_000]


def test_the_wait_varies_by_a_fifth() -> None:
    assert (_wait(1, 0.0), _wait(1, 1.0)) == (80, 120)


def test_nothing_waits_without_the_setting() -> None:
    assert not_before_ms(ShareSettings(), 3, now_ms=5_000, jitter=lambda: 0.5) == 0
