"""Transactions over several topics and partitions: all of it or nothing, for readers of committed data."""

from __future__ import annotations

import pytest

from tests.compat.transactions.conftest import ProducerMaker
from tests.compat.transactions.producers import CLIENTS, Record
from tests.compat.transactions.reading import (
    COMMITTED,
    UNCOMMITTED,
    Partition,
    end_offsets,
    flat,
    read_all,
    wait_until_stable,
)
from tests.harness.java import JavaHost
from tests.harness.topics import create_topic, unique_name


class Place:
    """Two topics with three and two partitions."""

    def __init__(self, bootstrap: str) -> None:
        self.partitions: list[Partition] = []
        for stem, count in (("orders", 3), ("payments", 2)):
            topic = create_topic(bootstrap, unique_name(stem), count)
            self.partitions += [(topic, number) for number in range(count)]

    def records(self, name: str) -> list[Record]:
        """One record for each partition; its value names its topic, so that a stray one is noticed."""
        return [(topic, number, f"{topic} {name}") for topic, number in self.partitions]

    def expected(self, *names: str) -> dict[Partition, list[str]]:
        return {(topic, number): [f"{topic} {name}" for name in names] for topic, number in self.partitions}


@pytest.fixture
def place(make_producer: ProducerMaker) -> Place:
    return Place(make_producer.bootstrap)


@pytest.mark.parametrize("client", CLIENTS)
def test_committed_is_seen_and_aborted_is_not(
    make_producer: ProducerMaker, place: Place, client: str
) -> None:
    producer, bootstrap = make_producer(client), make_producer.bootstrap
    producer.write(*place.records("first"))
    producer.begin()
    producer.send(*place.records("regretted"))
    producer.flush()
    assert read_all(bootstrap, place.partitions) == place.expected("first"), "seen before its commit"
    producer.abort()
    wait_until_stable(bootstrap, place.partitions)
    producer.write(*place.records("last"))
    wait_until_stable(bootstrap, place.partitions)
    assert read_all(bootstrap, place.partitions) == place.expected("first", "last")
    everything = read_all(bootstrap, place.partitions, UNCOMMITTED)
    assert everything == place.expected("first", "regretted", "last")


@pytest.mark.parametrize("client", CLIENTS)
def test_an_open_transaction_holds_readers_of_committed_data_back_and_no_one_else(
    make_producer: ProducerMaker, place: Place, client: str
) -> None:
    bootstrap, where = make_producer.bootstrap, place.partitions[0]
    slow, quick = make_producer(client), make_producer(client)
    slow.begin()
    slow.send((*where, "slow"))
    slow.flush()
    quick.write((*where, "quick"))
    assert read_all(bootstrap, [where]) == {where: []}
    assert read_all(bootstrap, [where], UNCOMMITTED) == {where: ["slow", "quick"]}
    assert end_offsets(bootstrap, [where], COMMITTED) == {where: 0}
    slow.commit()
    wait_until_stable(bootstrap, [where])
    assert read_all(bootstrap, [where]) == {where: ["slow", "quick"]}


@pytest.mark.parametrize("client", CLIENTS)
def test_empty_transactions_end_without_trace(
    make_producer: ProducerMaker, place: Place, client: str
) -> None:
    """A commit that is followed by an empty abort once made a producer fence itself (F18)."""
    producer, bootstrap = make_producer(client), make_producer.bootstrap
    for end in ("commit", "abort", "abort", "commit"):
        producer.begin()
        producer.call(end)
    producer.write(*place.records("one"))
    producer.begin()
    producer.abort()
    producer.write(*place.records("two"))
    wait_until_stable(bootstrap, place.partitions)
    assert read_all(bootstrap, place.partitions) == place.expected("one", "two")


@pytest.mark.parametrize("client", CLIENTS)
def test_many_transactions_in_a_row_leave_exactly_the_committed_ones(
    make_producer: ProducerMaker, place: Place, client: str
) -> None:
    producer, bootstrap = make_producer(client), make_producer.bootstrap
    committed = []
    for number in range(40):
        producer.begin()
        producer.send(*place.records(f"{number}"))
        if number % 4 == 2:
            # librdkafka may drop what was not sent yet and then abort nothing, which Kafka refuses.
            producer.flush()
            producer.abort()
        else:
            producer.commit()
            committed.append(f"{number}")
    wait_until_stable(bootstrap, place.partitions)
    assert read_all(bootstrap, place.partitions) == place.expected(*committed)


def test_clients_of_all_kinds_interleave_in_one_partition(make_producer: ProducerMaker, place: Place) -> None:
    bootstrap, where = make_producer.bootstrap, place.partitions[0]
    producers = [make_producer(client) for client in CLIENTS for _ in range(2)]
    committed = set()
    for turn in range(6):
        for producer in producers:
            producer.begin()
        for part in range(3):
            for producer in producers:
                producer.send((*where, f"{producer.name} {turn} {part}"))
                producer.flush()
        for number, producer in enumerate(producers):
            is_kept = (turn + number) % 2 == 0
            producer.call("commit" if is_kept else "abort")
            if is_kept:
                committed |= {f"{producer.name} {turn} {part}" for part in range(3)}
    wait_until_stable(bootstrap, [where])
    values = flat(read_all(bootstrap, [where]))
    assert len(values) == len(set(values))
    assert set(values) == committed


def test_the_java_consumer_skips_what_was_aborted(
    make_producer: ProducerMaker, place: Place, java: JavaHost
) -> None:
    bootstrap, where = make_producer.bootstrap, place.partitions[0]
    for client in CLIENTS:
        producer = make_producer(client)
        for number in range(6):
            producer.begin()
            producer.send(*[(*where, f"{client} {number} {part}") for part in range(5)])
            producer.call("abort" if number % 2 else "commit")
    wait_until_stable(bootstrap, [where])
    answer = java.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        ["--bootstrap-server", bootstrap, "--topic", where[0], "--partition", "0", "--offset", "earliest"]
        + ["--isolation-level", COMMITTED, "--max-messages", "45", "--timeout-ms", "10000"],
    )
    expected = [
        f"{client} {number} {part}" for client in CLIENTS for number in (0, 2, 4) for part in range(5)
    ]
    assert answer["stdout"].split("\n")[:-1] == expected
