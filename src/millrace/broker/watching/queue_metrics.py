"""Figures of share groups' dead letters, and of delivery that has stopped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from millrace.queues.share_partition.changes import Stop

if TYPE_CHECKING:
    from millrace.broker.queues.dead_letters import DeadLetters
    from millrace.broker.queues.share_partitions import SharePartitions
    from millrace.broker.watching.metrics import PlainFigures

_STOPS: Final = {
    Stop.PAUSED: ("paused", "because share.delivery.pause is set"),
    Stop.BREAKER: ("breaker", "because too many deliveries ended as dead letters"),
    Stop.DEAD_LETTERS: ("dead_letters", "because too many dead letters wait to be written"),
}


def queue_gauges(shares: SharePartitions, dead_letters: DeadLetters) -> PlainFigures:
    waiting = 0
    stopped: Counter[Stop | None] = Counter()
    for share in shares.shares:
        stopped[share.stop] += 1
        if share.rules is not None:
            waiting += share.rules.archiving_count
    return {
        "millrace_dead_letters_waiting": (
            "Records that share groups have given up and whose dead letters are not written yet.",
            waiting,
        ),
        "millrace_dead_letters_writers": (
            "Share partitions that are writing dead letters, or wait until they can.",
            dead_letters.writers_count,
        ),
        **{
            f"millrace_share_stopped_{name}": (f"Share partitions that deliver nothing {why}.", stopped[stop])
            for stop, (name, why) in _STOPS.items()
        },
    }


def queue_counters(shares: SharePartitions, dead_letters: DeadLetters) -> PlainFigures:
    return {
        "millrace_dead_letters_written": (
            "Dead letters of share groups that are committed.",
            dead_letters.written_count,
        ),
        "millrace_dead_letters_failures": (
            "Attempts to write dead letters that failed; each is tried again.",
            dead_letters.failed_count,
        ),
        **{
            f"millrace_share_stops_{name}": (
                f"How often a share partition stopped to deliver {why}.",
                shares.stop_counts[stop],
            )
            for stop, (name, why) in _STOPS.items()
        },
    }
