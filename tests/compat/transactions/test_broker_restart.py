"""The broker is killed while transactions are in every state: none is lost, split, or left hanging."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.compat.transactions.conftest import Hosts, ProducerMaker
from tests.compat.transactions.offsets import committed_offset
from tests.compat.transactions.producers import CLIENTS, Answer, Producer, Record
from tests.compat.transactions.reading import Partition, read_all, wait_until_stable
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name

STATES: Final = ("initialised", "begun", "flushed", "offsets sent", "committing", "committed", "aborted")
# Longer than the broker takes to come back; Kafka waits for the session of before its death.
SHORT_MS: Final = {"millrace": 4_000, "kafka": 15_000}


@pytest.fixture(scope="module")
def own_broker(start_broker: StartBroker, settings: dict[str, str]) -> BrokerProcess:
    return start_broker(settings)


@pytest.fixture
def make(hosts: Hosts, own_broker: BrokerProcess) -> Iterator[ProducerMaker]:
    maker = ProducerMaker(hosts, own_broker.bootstrap)
    yield maker
    maker.end()


class Interrupted:
    """One producer in one state when the broker dies; afterwards it goes on as if nothing had been."""

    def __init__(self, make: ProducerMaker, client: str, state: str) -> None:
        self.name = f"{client}, {state}"
        self.state = state
        self.group = unique_name("group")
        topic = create_topic(make.bootstrap, unique_name("restart"), 2)
        self.partitions: list[Partition] = [(topic, 0), (topic, 1)]
        self.producer = make(client)
        self._commit: Future[Answer] | None = None

    def records(self, name: str) -> list[Record]:
        return [(*where, name) for where in self.partitions]

    def go_on_to_the_state(self) -> None:
        producer = self.producer
        producer.write(*self.records("before"))
        walk: list[tuple[str, Callable[[], Any]]] = [
            ("initialised", lambda: None),
            ("begun", producer.begin),
            ("flushed", self._send_and_flush),
            ("offsets sent", lambda: producer.offsets(self.group, (*self.partitions[0], 7))),
        ]
        for state, work in walk:
            work()
            if state == self.state:
                return
        if self.state == "committed":
            producer.commit()
        elif self.state == "aborted":
            producer.abort()

    def _send_and_flush(self) -> None:
        self.producer.send(*self.records("during"))
        self.producer.flush()

    def start_commit(self) -> None:
        if self.state == "committing":
            self._commit = self.producer.start("commit")

    def go_on_after_the_restart(self) -> None:
        producer = self.producer
        if self.state in ("initialised", "begun"):
            if self.state == "initialised":
                producer.begin()
            producer.send(*self.records("during"))
        if self.state in ("initialised", "begun", "flushed"):
            producer.flush()
            producer.offsets(self.group, (*self.partitions[0], 7))
        if self._commit is not None:
            answer = self._commit.result(60)
            assert "error" not in answer, f"{self.name}: {answer}"
        elif self.state not in ("committed", "aborted"):
            producer.commit()
        producer.write(*self.records("after"))

    def check(self, bootstrap: str) -> None:
        during = [] if self.state == "aborted" else ["during"]
        expected = {where: ["before", *during, "after"] for where in self.partitions}
        wait_until_stable(bootstrap, self.partitions)
        assert read_all(bootstrap, self.partitions) == expected, self.name
        offset = -1 if self.state == "aborted" else 7
        assert committed_offset(bootstrap, self.group, self.partitions[0]) == offset, self.name


def test_producers_go_on_after_a_restart_in_every_state(
    own_broker: BrokerProcess, make: ProducerMaker
) -> None:
    cases = [Interrupted(make, client, state) for client in CLIENTS for state in STATES]
    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(Interrupted.go_on_to_the_state, cases))
        for case in cases:
            case.start_commit()
        own_broker.kill()
        own_broker.start()
        list(pool.map(Interrupted.go_on_after_the_restart, cases))
    for case in cases:
        case.check(own_broker.bootstrap)


def test_transactions_of_the_dead_are_aborted_after_a_restart(
    own_broker: BrokerProcess, make: ProducerMaker, against: str
) -> None:
    """Producer and broker die together; the time-out is counted on, and a successor need not wait for it."""
    bootstrap, timeout_ms = own_broker.bootstrap, SHORT_MS[against]
    abandoned: list[tuple[Producer, Partition]] = []
    for _ in range(2):
        where = create_topic(bootstrap, unique_name("abandoned")), 0
        producer = make("librdkafka", timeout_ms=timeout_ms, is_mortal=True)
        producer.begin()
        producer.send((*where, "never finished"))
        producer.flush()
        abandoned.append((producer, where))
    begun = time.monotonic()
    own_broker.kill()
    for producer, _ in abandoned:
        producer.vanish()
    own_broker.start()
    (succeeded, first), (_, second) = abandoned
    make("java", succeeded.ident).write((*first, "successor"))
    wait_until_stable(bootstrap, [first], 30.0)
    assert read_all(bootstrap, [first]) == {first: ["successor"]}
    assert read_all(bootstrap, [second]) == {second: []}
    wait_until_stable(bootstrap, [second], timeout_ms / 1000 + 30.0)
    assert time.monotonic() - begun > timeout_ms / 1000 - 1.0, "aborted before its time"
    assert read_all(bootstrap, [second]) == {second: []}


def test_no_commit_is_lost_or_split_by_repeated_kills(
    own_broker: BrokerProcess, make: ProducerMaker, against: str
) -> None:
    """The broker dies at random moments while producers of every kind commit as fast as they can."""
    bootstrap = own_broker.bootstrap
    topic = create_topic(bootstrap, unique_name("kills"), 3)
    partitions = [(topic, number) for number in range(3)]
    kills, dice = (1 if against == "kafka" else 5), random.Random(11)
    stopping: list[bool] = []
    progress = dict.fromkeys(CLIENTS, 0)

    def write_until_stopped(producer: Producer, client: str) -> list[str]:
        committed: list[str] = []
        while not stopping:
            value = f"{client} {len(committed)}"
            producer.write(*((*where, value) for where in partitions))
            committed.append(value)
            progress[client] = len(committed)
        return committed

    producers = {client: make(client) for client in CLIENTS}
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        writing = {
            client: pool.submit(write_until_stopped, producer, client)
            for client, producer in producers.items()
        }
        for _ in range(kills):
            time.sleep(dice.uniform(0.2, 0.8))
            own_broker.kill()
            own_broker.start()
        after_kills = dict(progress)
        eventually(
            lambda: (
                any(work.done() for work in writing.values())
                or all(progress[client] > after_kills[client] for client in CLIENTS)
            ),
            60,
        )
        stopping.append(True)
        committed = {client: work.result(60) for client, work in writing.items()}
    wait_until_stable(bootstrap, partitions)
    for where, values in read_all(bootstrap, partitions).items():
        for client, expected in committed.items():
            assert [value for value in values if value.startswith(client)] == expected, (where, client)
    assert all(len(values) > 2 for values in committed.values()), committed
