"""A transaction that takes too long is aborted by the broker, and its producer learns of it."""

from __future__ import annotations

import time

import pytest

from tests.compat.transactions.conftest import ProducerMaker
from tests.compat.transactions.producers import CLIENTS, Refused
from tests.compat.transactions.reading import COMMITTED, UNCOMMITTED, end_offsets, read_all, wait_until_stable
from tests.harness.topics import create_topic, unique_name

TIMEOUT_MS = 1_000
# How often the broker looks for late transactions, and time for the abort itself on a busy machine.
SLACK_S = 30.0


@pytest.mark.parametrize("client", CLIENTS)
def test_a_late_transaction_is_aborted_by_the_broker(make_producer: ProducerMaker, client: str) -> None:
    bootstrap = make_producer.bootstrap
    where = create_topic(bootstrap, unique_name("late")), 0
    producer = make_producer(client, timeout_ms=TIMEOUT_MS)
    started = time.monotonic()
    producer.begin()
    producer.send((*where, "too late"))
    producer.flush()
    assert end_offsets(bootstrap, [where], COMMITTED) == {where: 0}
    wait_until_stable(bootstrap, [where], TIMEOUT_MS / 1000 + SLACK_S)
    assert time.monotonic() - started >= TIMEOUT_MS / 1000, "aborted before its time"
    with pytest.raises(Refused):
        producer.commit()
    # Whoever comes with the same id works as ever.
    make_producer(client, producer.ident).write((*where, "in time"))
    wait_until_stable(bootstrap, [where])
    assert read_all(bootstrap, [where]) == {where: ["in time"]}
    assert read_all(bootstrap, [where], UNCOMMITTED) == {where: ["too late", "in time"]}


def test_a_time_out_does_not_touch_transactions_in_time(make_producer: ProducerMaker) -> None:
    bootstrap = make_producer.bootstrap
    where = create_topic(bootstrap, unique_name("late")), 0
    producers = {client: make_producer(client, timeout_ms=TIMEOUT_MS) for client in CLIENTS}
    ends = time.monotonic() + 2 * TIMEOUT_MS / 1000
    written: list[str] = []
    while time.monotonic() < ends:
        for client, producer in producers.items():
            value = f"{client} {len(written)}"
            producer.write((*where, value))
            written.append(value)
            time.sleep(0.02)
    wait_until_stable(bootstrap, [where])
    assert read_all(bootstrap, [where]) == {where: written}
