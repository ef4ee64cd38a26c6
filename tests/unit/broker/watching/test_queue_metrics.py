"""What is told of dead letters and stopped delivery on /metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millrace.broker.watching.queue_metrics import queue_counters, queue_gauges
from millrace.queues.share_partition.changes import Stop

SHARES: Any = SimpleNamespace(
    shares=[
        SimpleNamespace(stop=Stop.BREAKER, rules=SimpleNamespace(archiving_count=3)),
        SimpleNamespace(stop=None, rules=SimpleNamespace(archiving_count=4)),
        SimpleNamespace(stop=None, rules=None),
    ],
    stop_counts={Stop.PAUSED: 1, Stop.BREAKER: 2, Stop.DEAD_LETTERS: 3},
)
DEAD_LETTERS: Any = SimpleNamespace(written_count=5, failed_count=6, writers_count=2)


def test_what_waits_and_what_is_stopped() -> None:
    told = {name: value for name, (_, value) in queue_gauges(SHARES, DEAD_LETTERS).items()}
    assert told == {
        "millrace_dead_letters_waiting": 7,
        "millrace_dead_letters_writers": 2,
        "millrace_share_stopped_paused": 0,
        "millrace_share_stopped_breaker": 1,
        "millrace_share_stopped_dead_letters": 0,
    }


def test_what_has_happened() -> None:
    told = {name: value for name, (_, value) in queue_counters(SHARES, DEAD_LETTERS).items()}
    assert told == {
        "millrace_dead_letters_written": 5,
        "millrace_dead_letters_failures": 6,
        "millrace_share_stops_paused": 1,
        "millrace_share_stops_breaker": 2,
        "millrace_share_stops_dead_letters": 3,
    }
