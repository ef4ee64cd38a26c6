"""The transactions that this broker coordinates in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.transactions.transaction import State, Transaction

if TYPE_CHECKING:
    from prometheus_client.core import Metric


_NEVER_STORED: Final = (State.Dead, State.PrepareEpochFence)
"""Kafka has numbers for these states, but no transaction here gets into them."""


class TransactionFigures(NamedTuple):
    """The transactions of this broker, counted and timed."""

    counts: dict[str, int]
    """Transactional ids by the state of their transaction."""
    oldest_open_s: float
    oldest_ending_s: float
    """How long ago its end was decided; 0 if every transaction that has ended is complete."""
    markers: int


def transaction_figures(transactions: Iterable[Transaction], now_ms: int) -> TransactionFigures:
    counts = {state.name: 0 for state in State if state not in _NEVER_STORED}
    opened_ms = ended_ms = now_ms
    markers = 0
    for transaction in transactions:
        name = transaction.state.name
        counts[name] = counts.get(name, 0) + 1
        if transaction.state is State.Ongoing:
            opened_ms = min(opened_ms, transaction.started_ms)
        elif transaction.is_prepared:
            ended_ms = min(ended_ms, transaction.updated_ms)
            markers += len(transaction.partitions)
    return TransactionFigures(
        counts=counts,
        oldest_open_s=(now_ms - opened_ms) / 1000,
        oldest_ending_s=(now_ms - ended_ms) / 1000,
        markers=markers,
    )


def transaction_families(figures: TransactionFigures) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    counts = GaugeMetricFamily(
        "millrace_transactions",
        "Transactional ids that this broker coordinates, by the state of their transaction.",
        labels=("state",),
    )
    for state, count in figures.counts.items():
        counts.add_metric((state,), count)
    yield counts
    yield GaugeMetricFamily(
        "millrace_transaction_oldest_open_seconds",
        "Age of the oldest transaction that its producer has not ended.",
        value=figures.oldest_open_s,
    )
    yield GaugeMetricFamily(
        "millrace_transaction_oldest_ending_seconds",
        "Since the end of the oldest transaction of which not all partitions have their markers.",
        value=figures.oldest_ending_s,
    )
    yield GaugeMetricFamily(
        "millrace_transaction_markers_pending",
        "Partitions of transactions that have ended and are not complete: their markers are being written.",
        value=figures.markers,
    )
