"""Transactions as Prometheus reads them: how many in which state, how old, how many markers are missing."""

from __future__ import annotations

from dataclasses import replace

from millrace.broker.watching.transaction_metrics import transaction_families, transaction_figures
from millrace.core.ids import TopicPartition
from millrace.transactions.transaction import State, Transaction

EMPTY = Transaction(transactional_id="t", producer_id=1, epoch=0, timeout_ms=60_000, partitions={})
PLACES = [TopicPartition("orders", number) for number in range(3)]
NOW_MS = 100_000


def opened(at_ms: int, partitions: int = 1) -> Transaction:
    return EMPTY.with_partitions(PLACES[:partitions], 2, at_ms)


def ended(transaction: Transaction, at_ms: int, *, is_commit: bool = True) -> Transaction:
    return transaction.prepared(is_commit=is_commit, transaction_version=2, next_producer_id=-1, now_ms=at_ms)


def samples(*transactions: Transaction) -> dict[str, float]:
    families = transaction_families(transaction_figures(transactions, NOW_MS))
    return {
        sample.labels.get("state", sample.name): sample.value
        for family in families
        for sample in family.samples
    }


def test_without_transactions_everything_is_zero() -> None:
    found = samples()
    assert set(found.values()) == {0}
    assert {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"} < {*found}


def test_transactions_are_counted_by_state() -> None:
    found = samples(
        EMPTY,
        opened(90_000),
        opened(91_000),
        ended(opened(80_000), 95_000),
        ended(opened(80_000), 95_000, is_commit=False),
        ended(opened(80_000), 95_000).completed(96_000),
    )
    assert {name: found[name] for name in ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort")} == {
        "Empty": 1,
        "Ongoing": 2,
        "PrepareCommit": 1,
        "PrepareAbort": 1,
    }
    assert (found["CompleteCommit"], found["CompleteAbort"]) == (1, 0)


def test_only_open_transactions_have_an_age() -> None:
    found = samples(opened(99_000), opened(40_000), ended(opened(10_000), 95_000))
    assert found["millrace_transaction_oldest_open_seconds"] == 60.0


def test_markers_are_pending_until_the_transaction_is_complete() -> None:
    first, second = ended(opened(10_000, 3), 95_000), ended(opened(20_000, 2), 97_500)
    found = samples(opened(1_000, 3), first, second)
    assert found["millrace_transaction_markers_pending"] == 5
    assert found["millrace_transaction_oldest_ending_seconds"] == 5.0
    found = samples(first.completed(99_000), second)
    assert found["millrace_transaction_markers_pending"] == 2
    assert found["millrace_transaction_oldest_ending_seconds"] == 2.5


def test_a_clock_that_was_set_back_makes_no_age_below_zero() -> None:
    found = samples(opened(NOW_MS + 5_000))
    assert found["millrace_transaction_oldest_open_seconds"] == 0.0


def test_a_state_that_only_kafka_has_is_counted_too() -> None:
    assert samples(replace(EMPTY, state=State.Dead))["Dead"] == 1
