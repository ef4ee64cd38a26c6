"""A work queue for confluent-kafka's ShareConsumer: accept, release, reject, locks that end, closing."""

from __future__ import annotations

import time

import pytest

from tests.compat.queues.share_groups import Worker, seen, send, set_group
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker whose groups may have locks of one second."""
    return start_broker(
        {
            "auto.create.topics.enable": "false",
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "1000",
        }
    )


@pytest.fixture
def names(broker: BrokerProcess) -> tuple[str, str]:
    """A group that begins at the beginning, and its topic."""
    group, topic = unique_name("workers"), unique_name("jobs")
    set_group(broker, group, share__auto__offset__reset="earliest")
    create_topic(broker.bootstrap, topic)
    return group, topic


def test_accepted_records_are_done(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    send(broker, topic, "a", "b", "c")
    worker = Worker(broker, group, topic)
    messages = worker.take(3)
    assert seen(messages) == [("a", 1), ("b", 1), ("c", 1)]
    worker.say("ACCEPT", *messages)
    worker.close()
    send(broker, topic, "d")
    again = Worker(broker, group, topic)
    assert seen(again.take(1)) == [("d", 1)]
    again.close()


def test_released_records_come_again_and_rejected_ones_do_not(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    group, topic = names
    send(broker, topic, "a", "b", "c")
    worker = Worker(broker, group, topic)
    first, second, third = worker.take(3)
    worker.consumer.acknowledge(first)
    worker.say("REJECT", second)
    worker.say("RELEASE", third)
    again = worker.take(1)
    assert seen(again) == [("c", 2)]
    worker.say("ACCEPT", *again)
    send(broker, topic, "d")
    assert seen(worker.take(1)) == [("d", 1)]
    worker.close()


def test_two_workers_share_a_partition(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    workers = [Worker(broker, group, topic, max_poll_records=1) for _ in range(2)]
    values = [f"{number:03}" for number in range(40)]
    send(broker, topic, *values)
    done: list[str] = []
    end = time.monotonic() + 30
    by_worker = [0, 0]
    while len(done) < len(values) and time.monotonic() < end:
        for number, worker in enumerate(workers):
            messages = worker.consumer.poll(0.1)
            done += [message.value().decode() for message in messages]
            by_worker[number] += len(messages)
            if messages:
                worker.say("ACCEPT", *messages)
    assert sorted(done) == values, "each once"
    assert min(by_worker) > 0
    for worker in workers:
        worker.close()


def test_a_lock_that_ends_gives_the_record_to_another(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(broker, group, share__record__lock__duration__ms="1500")
    send(broker, topic, "a")
    slow, other = Worker(broker, group, topic), Worker(broker, group, topic)
    (held,) = slow.take(1)
    started = time.monotonic()
    (taken,) = other.take(1)
    assert seen([taken]) == [("a", 2)]
    assert 0.5 < time.monotonic() - started < 10
    with pytest.raises(AssertionError, match="INVALID_RECORD_STATE"):
        slow.say("ACCEPT", held)
    other.say("ACCEPT", taken)
    slow.close()
    other.close()


def test_a_worker_that_closes_gives_back_what_it_holds(
    broker: BrokerProcess, names: tuple[str, str], against: str
) -> None:
    group, topic = names
    send(broker, topic, "a", "b")
    worker = Worker(broker, group, topic)
    assert len(worker.take(2)) == 2
    worker.close()
    other = Worker(broker, group, topic)
    messages = other.take(2, timeout_s=15)
    # Closing in order is no failure, and is not counted as one; Kafka counts it.
    count = 1 if against == "millrace" else 2
    assert seen(messages) == [("a", count), ("b", count)]
    other.say("ACCEPT", *messages)
    other.close()


def test_what_nobody_can_handle_is_given_up(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(broker, group, share__delivery__count__limit="2")
    send(broker, topic, "poison", "good")
    worker = Worker(broker, group, topic)
    counts: list[int] = []
    good: list[str] = []
    end = time.monotonic() + 30
    while len(counts) < 2 and time.monotonic() < end:
        for message in worker.consumer.poll(0.2):
            if message.value() == b"poison":
                counts.append(message.delivery_count())
                worker.say("RELEASE", message)
            else:
                good.append(message.value().decode())
                worker.say("ACCEPT", message)
    assert counts == [1, 2]
    send(broker, topic, "later")
    assert [message.value() for message in worker.take(1)] == [b"later"]
    worker.close()
