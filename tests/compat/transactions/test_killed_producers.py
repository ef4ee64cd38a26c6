"""Producers die at every step of the protocol: nobody sees a part of a transaction, nobody waits for long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from confluent_kafka import Producer as PlainProducer

from tests.compat.transactions.conftest import ProducerMaker
from tests.compat.transactions.offsets import committed_offset
from tests.compat.transactions.producers import CLIENTS, Producer, Record
from tests.compat.transactions.reading import COMMITTED, Partition, Reader, end_offsets, read_all
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

TIMEOUT_MS: Final = 1_500
# How often the broker looks for late transactions, and time for the abort itself on a busy machine.
SLACK_S: Final = 30.0
STEPS: Final = (
    "initialised",
    "begun",
    "sent",
    "flushed",
    "offsets sent",
    "committing",
    "committed",
    "aborted",
    "begun again",
)
MAY_BE_SEEN: Final = {"committing"}
MUST_BE_SEEN: Final = {"committed", "begun again"}


class Doomed:
    """A producer on its way to the step at which it dies, with a topic and a group of its own."""

    def __init__(self, make: ProducerMaker, client: str, step: str) -> None:
        self.step = step
        self.group = unique_name("group")
        topic = create_topic(make.bootstrap, unique_name("killed"), 2)
        self.partitions: list[Partition] = [(topic, 0), (topic, 1)]
        self.producer = make(client, timeout_ms=TIMEOUT_MS, is_mortal=True)

    def records(self, name: str) -> list[Record]:
        return [(*where, f"{name} {number}") for where in self.partitions for number in range(3)]

    def values(self, name: str) -> list[str]:
        return [f"{name} {number}" for number in range(3)]

    def live_and_die(self) -> None:
        """Up to the step and no further."""
        producer = self.producer
        walk: list[tuple[str, Callable[[], Any]]] = [
            ("initialised", lambda: None),
            ("begun", producer.begin),
            ("sent", lambda: producer.send(*self.records("first"))),
            ("flushed", producer.flush),
            ("offsets sent", lambda: producer.offsets(self.group, (*self.partitions[0], 7))),
        ]
        ends: dict[str, list[Callable[[], Any]]] = {
            "committing": [lambda: producer.start("commit")],
            "committed": [producer.commit],
            "aborted": [producer.abort],
            "begun again": [producer.commit, producer.begin, self._send_again],
        }
        for step, work in walk:
            work()
            if step == self.step:
                break
        for work in ends.get(self.step, []):
            work()
        if self.step == "committing":
            time.sleep(random.uniform(0, 0.004))
        producer.vanish()

    def _send_again(self) -> None:
        self.producer.send(*self.records("second"))
        self.producer.flush()

    def check(self, bootstrap: str, *later: str) -> None:
        """Everything or nothing, in all partitions and in the group's offsets, and then what came later."""
        seen = read_all(bootstrap, self.partitions)
        is_seen = bool(seen[self.partitions[0]][: -len(later) or None])
        assert is_seen or self.step not in MUST_BE_SEEN, f"{self.step}: lost"
        assert not is_seen or self.step in MUST_BE_SEEN | MAY_BE_SEEN, f"{self.step}: seen, never committed"
        first = self.values("first") if is_seen else []
        assert seen == {where: [*first, *later] for where in self.partitions}, self.step
        committed = committed_offset(bootstrap, self.group, self.partitions[0])
        assert committed == (7 if is_seen else -1), self.step


def killed_at_every_step(make: ProducerMaker, client: str) -> list[Doomed]:
    with ThreadPoolExecutor(len(STEPS)) as pool:
        doomed = list(pool.map(lambda step: Doomed(make, client, step), STEPS))
        list(pool.map(Doomed.live_and_die, doomed))
    return doomed


@pytest.mark.parametrize("client", CLIENTS)
def test_readers_wait_no_longer_than_the_time_out_for_the_dead(
    make_producer: ProducerMaker, client: str
) -> None:
    bootstrap = make_producer.bootstrap
    all_doomed = killed_at_every_step(make_producer, client)
    readers = {each.step: Reader(bootstrap, each.partitions) for each in all_doomed}
    # What others write behind an open transaction is what a reader must wait for.
    others: Any = PlainProducer({"bootstrap.servers": bootstrap})
    for each in all_doomed:
        for topic, number in each.partitions:
            others.produce(topic, value="by others", partition=number)
    assert others.flush(60) == 0
    deadline = time.monotonic() + TIMEOUT_MS / 1000 + SLACK_S
    for each in all_doomed:
        for where in each.partitions:
            readers[each.step].wait_for(where, "by others", max(0.3, deadline - time.monotonic()))
        readers[each.step].close()
    for each in all_doomed:
        each.check(bootstrap, "by others")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_successor_does_not_wait_and_finds_a_clean_place(make_producer: ProducerMaker, client: str) -> None:
    """The successor's first offset in the group is the one that its predecessor committed, or none."""
    bootstrap = make_producer.bootstrap
    all_doomed = killed_at_every_step(make_producer, client)

    def succeed(doomed: Doomed) -> Producer:
        successor = make_producer(client, doomed.producer.ident)
        successor.write(*((*where, "successor") for where in doomed.partitions))
        return successor

    with ThreadPoolExecutor(len(STEPS)) as pool:
        list(pool.map(succeed, all_doomed))
    for each in all_doomed:
        for where, end in end_offsets(bootstrap, each.partitions, COMMITTED).items():
            assert end > 0, f"{each.step}: {where} still waits"
        each.check(bootstrap, "successor")


def test_commits_are_whole_whenever_the_producer_dies(
    make_producer: ProducerMaker, broker: BrokerProcess
) -> None:
    """Many deaths around the commit, at moments from before its request to after its answer."""
    bootstrap = broker.bootstrap
    topic = create_topic(bootstrap, unique_name("killed"), 3)
    partitions = [(topic, number) for number in range(3)]
    dice = random.Random(5)

    def one(number: int) -> None:
        producer = make_producer("librdkafka", timeout_ms=TIMEOUT_MS, is_mortal=True)
        producer.write(*((*where, f"{number} first") for where in partitions))
        producer.begin()
        producer.send(*((*where, f"{number} second") for where in partitions))
        producer.start("commit")
        time.sleep(dice.uniform(0, 0.02))
        producer.vanish()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(16)))
    reader = Reader(bootstrap, partitions)
    others: Any = PlainProducer({"bootstrap.servers": bootstrap})
    for _, number in partitions:
        others.produce(topic, value="by others", partition=number)
    assert others.flush(60) == 0
    for where in partitions:
        reader.wait_for(where, "by others", TIMEOUT_MS / 1000 + SLACK_S)
    reader.close()
    seen = {where: set(values) for where, values in read_all(bootstrap, partitions).items()}
    assert seen[partitions[0]] == seen[partitions[1]] == seen[partitions[2]], "a part of a transaction"
    assert {f"{number} first" for number in range(16)} <= seen[partitions[0]]
