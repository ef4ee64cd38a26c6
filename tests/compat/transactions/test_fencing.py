"""A transactional id has one owner: whoever initialises it last. Everybody else is a zombie."""

from __future__ import annotations

import pytest

from tests.compat.transactions.conftest import ProducerMaker
from tests.compat.transactions.producers import CLIENTS, FENCED, Producer, Refused
from tests.compat.transactions.reading import Partition, read_all, wait_until_stable
from tests.harness.process import BrokerProcess
from tests.harness.raw import INIT_PRODUCER_ID, RawConnection
from tests.harness.topics import create_topic, unique_name


@pytest.fixture
def where(make_producer: ProducerMaker) -> Partition:
    return create_topic(make_producer.bootstrap, unique_name("fenced")), 0


def refusal(producer: Producer, *ops: str, where: Partition) -> str | None:
    """The first error that the producer gets on its way through these calls."""
    try:
        for op in ops:
            if op == "send":
                producer.send((*where, "from the zombie"))
            else:
                producer.call(op)
    except Refused as refused:
        return refused.error
    return None


@pytest.mark.parametrize("successor", CLIENTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_successor_aborts_the_open_transaction_and_fences_its_predecessor(
    make_producer: ProducerMaker, where: Partition, client: str, successor: str
) -> None:
    zombie = make_producer(client)
    zombie.begin()
    zombie.send((*where, "never finished"))
    zombie.flush()
    owner = make_producer(successor, zombie.ident)
    wait_until_stable(make_producer.bootstrap, [where], 5.0)
    assert refusal(zombie, "send", "flush", "commit", where=where) in FENCED
    owner.write((*where, "from the owner"))
    wait_until_stable(make_producer.bootstrap, [where])
    assert read_all(make_producer.bootstrap, [where]) == {where: ["from the owner"]}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("state", ["initialised", "flushed", "committed", "aborted"])
def test_a_zombie_is_fenced_in_every_state(
    make_producer: ProducerMaker, where: Partition, client: str, state: str
) -> None:
    zombie = make_producer(client)
    expected = []
    if state != "initialised":
        zombie.begin()
        zombie.send((*where, "before"))
        zombie.flush()
    if state == "committed":
        zombie.commit()
        expected.append("before")
    if state == "aborted":
        zombie.abort()
    owner = make_producer(client, zombie.ident)
    owner.begin()
    owner.send((*where, "from the owner"))
    owner.flush()
    ops = ("commit",) if state == "flushed" else ("begin", "send", "flush", "commit")
    assert refusal(zombie, *ops, where=where) in FENCED
    owner.commit()
    wait_until_stable(make_producer.bootstrap, [where])
    assert read_all(make_producer.bootstrap, [where]) == {where: [*expected, "from the owner"]}


def test_each_initialisation_bumps_the_epoch(broker: BrokerProcess) -> None:
    ident = unique_name("txn")
    request = {
        "transactional_id": ident,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    with RawConnection((broker.host, broker.port)) as connection:
        seen: list[tuple[int, int]] = []
        while len(seen) < 3:
            answer = connection.call(INIT_PRODUCER_ID, 5, request)
            if answer["error_code"] in ("coordinator_load_in_progress", "concurrent_transactions"):
                continue
            assert answer["error_code"] == "none", answer
            seen.append((answer["producer_id"], answer["producer_epoch"]))
        identity, epoch = seen[-1]
        # The owner itself may go on from where it is; one that is behind may not.
        own = request | {"producer_id": identity, "producer_epoch": epoch}
        assert connection.call(INIT_PRODUCER_ID, 5, own)["producer_epoch"] == epoch + 1
        stale = request | {"producer_id": identity, "producer_epoch": seen[0][1]}
        assert connection.call(INIT_PRODUCER_ID, 5, stale)["error_code"] == "producer_fenced"
    assert {identity for identity, _ in seen} == {seen[0][0]}
    assert [epoch for _, epoch in seen] == [seen[0][1], seen[0][1] + 1, seen[0][1] + 2]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_outs_out_of_range_are_refused(broker: BrokerProcess, timeout_ms: int) -> None:
    request = {
        "transactional_id": unique_name("txn"),
        "transaction_timeout": timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    with RawConnection((broker.host, broker.port)) as connection:
        answer = connection.call(INIT_PRODUCER_ID, 5, request)
    assert answer["error_code"] == "invalid_transaction_timeout"
