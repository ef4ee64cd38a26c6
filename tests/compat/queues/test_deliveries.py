"""What a share group's settings say of deliveries: waits between them, age, pauses, limits, order."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.compat.queues.share_groups import DEADLINE_S, Worker, seen, send, set_group
from tests.conftest import StartBroker
from tests.harness.millrace import MillraceProcess
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

pytestmark = pytest.mark.millrace_only


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(
        {
            "auto.create.topics.enable": "false",
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "1000",
            "errors.deadletterqueue.auto.create.topics.enable": "true",
        }
    )


@pytest.fixture
def names(broker: BrokerProcess) -> tuple[str, str]:
    """A group that begins at the beginning, and its topic."""
    group, topic = unique_name("workers"), unique_name("jobs")
    set_group(broker, group, share__auto__offset__reset="earliest")
    create_topic(broker.bootstrap, topic)
    return group, topic


def _is_quiet(worker: Worker, for_s: float = 0.8) -> bool:
    """Whether a worker that asks for records gets none."""
    end = time.monotonic() + for_s
    return all(not worker.consumer.poll(0.1) for _ in iter(lambda: time.monotonic() < end, False))


def test_a_released_record_comes_back_after_its_wait_and_others_meanwhile(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    group, topic = names
    set_group(broker, group, share__retry__backoff__ms="2000", share__retry__backoff__max__ms="60000")
    send(broker, topic, "a")
    worker = Worker(broker, group, topic)
    worker.say("RELEASE", *worker.take(1))
    released = time.monotonic()
    send(broker, topic, "b")
    messages = worker.take(1)
    assert seen(messages) == [("b", 1)]
    worker.say("ACCEPT", *messages)
    assert time.monotonic() - released < 1.5, "it does not wait with the other"
    again = worker.take(1)
    assert seen(again) == [("a", 2)]
    # Two seconds, less at most a fifth.
    assert time.monotonic() - released > 1.5
    worker.say("RELEASE", *again)
    released = time.monotonic()
    assert seen(worker.take(1)) == [("a", 3)]
    assert time.monotonic() - released > 3.1, "each wait is twice as long"
    worker.close()


def test_a_wait_outlives_the_broker(start_broker: StartBroker) -> None:
    own = start_broker({"auto.create.topics.enable": "false"})
    group, topic = unique_name("workers"), create_topic(own.bootstrap, unique_name("jobs"))
    set_group(own, group, share__auto__offset__reset="earliest", share__retry__backoff__ms="8000")
    send(own, topic, "a")
    worker = Worker(own, group, topic)
    worker.say("RELEASE", *worker.take(1))
    released = time.monotonic()
    own.kill()
    own.start()
    assert seen(worker.take(1)) == [("a", 2)]
    assert time.monotonic() - released > 6
    worker.close()


def test_records_that_are_too_old_are_given_up(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    letters = unique_name("dlq.old")
    set_group(
        broker, group, share__record__max__age__ms="60000", errors__deadletterqueue__topic__name=letters
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value, age_s in (("old", 3_600), ("new", 0)):
        producer.produce(topic, value, partition=0, timestamp=int((time.time() - age_s) * 1000))
        producer.flush(DEADLINE_S)
    worker = Worker(broker, group, topic)
    messages = worker.take(1)
    assert seen(messages) == [("new", 1)]
    worker.say("ACCEPT", *messages)
    (letter,) = _read(broker, letters, 1)
    headers = dict(letter.headers())
    assert letter.value() == b"old"
    assert headers["__dlq.errors.message"] == b"Offset expired before its delivery."
    assert headers["__dlq.errors.delivery.count"] == b"0"
    worker.close()


def test_a_record_that_waits_for_its_next_delivery_may_become_too_old(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    group, topic = names
    letters = unique_name("dlq.old")
    set_group(
        broker,
        group,
        share__record__max__age__ms="3000",
        share__retry__backoff__ms="2000",
        errors__deadletterqueue__topic__name=letters,
    )
    worker = Worker(broker, group, topic)
    send(broker, topic, "a")
    worker.say("RELEASE", *worker.take(1))
    worker.say("RELEASE", *worker.take(1))
    assert _is_quiet(worker, 6)
    (letter,) = _read(broker, letters, 1)
    assert dict(letter.headers())["__dlq.errors.message"] == b"Offset expired before its delivery."
    worker.close()


def test_delivery_stops_when_too_much_is_given_up_and_goes_on_later(
    broker: BrokerProcess, names: tuple[str, str]
) -> None:
    group, topic = names
    letters = unique_name("dlq.flood")
    set_group(
        broker,
        group,
        errors__deadletterqueue__topic__name=letters,
        share__dlq__breaker__ratio="0.5",
        share__dlq__breaker__window__ms="3000",
    )
    worker = Worker(broker, group, topic, max_poll_records=1)
    send(broker, topic, *(f"{number:02}" for number in range(20)))
    rejected = 0

    def reject(batch: list[Any]) -> bool:
        nonlocal rejected
        for message in batch:
            worker.say("REJECT", message)
            rejected += 1
        return rejected >= 10

    worker.until(reject)
    stopped = time.monotonic()
    assert rejected == 10
    assert _is_quiet(worker, 2)
    figures = cast("MillraceProcess", broker).http("/metrics")[1]
    assert "\nmillrace_share_stopped_breaker 1.0" in figures
    assert "share.dlq.breaker.ratio is given up" in broker.output()
    worker.take(1)
    assert "delivery goes on" in broker.output()
    assert 2.5 < time.monotonic() - stopped < 10
    assert len(_read(broker, letters, 10)) == 10
    worker.close()


def test_a_group_can_be_paused_and_goes_on(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    worker = Worker(broker, group, topic)
    send(broker, topic, "a")
    held = worker.take(1)
    set_group(broker, group, share__delivery__pause="true")
    send(broker, topic, "b")
    worker.say("ACCEPT", *held)
    assert _is_quiet(worker, 1.5)
    set_group(broker, group, share__delivery__pause="false")
    began = time.monotonic()
    assert seen(worker.take(1)) == [("b", 1)]
    assert time.monotonic() - began < 2
    worker.close()


def test_releases_need_not_count(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(
        broker,
        group,
        share__count__failures__only="true",
        share__delivery__count__limit="2",
        share__record__lock__duration__ms="1000",
    )
    worker = Worker(broker, group, topic)
    send(broker, topic, "a")
    for _ in range(5):
        messages = worker.take(1)
        assert seen(messages) == [("a", 1)]
        worker.say("RELEASE", *messages)
    assert seen(worker.take(1)) == [("a", 1)]
    # A lock that ends is a failure.
    other = Worker(broker, group, topic)
    assert seen(other.take(1)) == [("a", 2)]
    third = Worker(broker, group, topic)
    assert _is_quiet(third, 2)
    send(broker, topic, "b")
    assert seen(third.take(1)) == [("b", 1)]
    for each in (worker, other, third):
        each.close()


def test_a_member_holds_no_more_than_it_may(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(broker, group, share__member__max__record__locks="2")
    send(broker, topic, *"abcdef")
    greedy = Worker(broker, group, topic)
    held = greedy.take(2)
    assert seen(held) == [("a", 1), ("b", 1)]
    other = Worker(broker, group, topic)
    assert seen(other.take(2)) == [("c", 1), ("d", 1)]
    greedy.say("ACCEPT", *held)
    assert seen(greedy.take(2)) == [("e", 1), ("f", 1)]
    greedy.close()
    other.close()


def test_the_records_of_a_key_come_one_after_another(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(broker, group, share__order="key")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for number in range(60):
        producer.produce(topic, str(number), key=f"k{number % 3}", partition=0)
    producer.flush(DEADLINE_S)
    workers = [Worker(broker, group, topic) for _ in range(2)]
    done: dict[bytes, list[int]] = {}
    held: dict[bytes, Any] = {}
    by_worker = [0, 0]
    rounds = 0
    end = time.monotonic() + 60
    while sum(map(len, done.values())) < 60 and time.monotonic() < end:
        worker = workers[rounds % 2]
        mine = []
        for message in worker.consumer.poll(0.2):
            assert message.key() not in held, "one of a key at a time"
            held[message.key()] = message
            mine.append(message)
        by_worker[rounds % 2] += len(mine)
        rounds += 1
        for message in mine:
            del held[message.key()]
            # Some fail once and must come again before the next of their key.
            fails = int(message.value()) % 7 == 0 and message.delivery_count() == 1
            worker.say("RELEASE" if fails else "ACCEPT", message)
            if not fails:
                done.setdefault(message.key(), []).append(int(message.value()))
    assert done == {b"k%d" % key: list(range(key, 60, 3)) for key in range(3)}
    assert min(by_worker) > 0
    for worker in workers:
        worker.close()


def test_a_key_in_flight_holds_up_only_itself(broker: BrokerProcess, names: tuple[str, str]) -> None:
    group, topic = names
    set_group(broker, group, share__order="key")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value in (("x", "x1"), ("x", "x2"), ("y", "y1"), ("y", "y2")):
        producer.produce(topic, value, key=key, partition=0)
        producer.flush(DEADLINE_S)
    slow = Worker(broker, group, topic, max_poll_records=1)
    (held,) = slow.take(1)
    assert held.value() == b"x1"
    other = Worker(broker, group, topic)
    for value in ("y1", "y2"):
        messages = other.take(1)
        assert seen(messages) == [(value, 1)]
        other.say("ACCEPT", *messages)
    assert _is_quiet(other)
    slow.say("ACCEPT", held)
    assert seen(other.take(1)) == [("x2", 1)]
    slow.close()
    other.close()


def _read(broker: BrokerProcess, topic: str, count: int) -> list[Any]:
    consumer: Any = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "topic.metadata.refresh.interval.ms": 500}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    end = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    assert len(found) == count
    return found
