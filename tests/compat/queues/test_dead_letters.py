"""What share groups give up becomes a dead letter, and is let go only when that is written."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.compat.queues.share_groups import DEADLINE_S, Worker, seen, send, set_group
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess, throughout
from tests.harness.topics import admin_client, create_topic, unique_name

pytestmark = pytest.mark.millrace_only

TAKES_LETTERS = {"errors.deadletterqueue.group.enable": "true"}
REJECTED = b"Offset rejected by client."
TOO_OFTEN = b"Offset delivery count exceeded the threshold."


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(
        {
            "auto.create.topics.enable": "false",
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "1000",
        }
    )


class Names(NamedTuple):
    group: str
    topic: str
    letters: str


@pytest.fixture
def names(broker: BrokerProcess) -> Names:
    """A group, its topic, and the name of its dead-letter topic, which does not exist yet."""
    names = Names(unique_name("workers"), unique_name("jobs"), unique_name("dlq.jobs"))
    set_group(
        broker,
        names.group,
        share__auto__offset__reset="earliest",
        errors__deadletterqueue__topic__name=names.letters,
    )
    create_topic(broker.bootstrap, names.topic)
    return names


class Reader:
    """Reads a dead-letter topic from its beginning."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._consumer: Any = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.found: list[Any] = []

    def read(self, count: int, timeout_s: float = DEADLINE_S) -> list[Any]:
        """The first dead letters, at least so many."""
        end = time.monotonic() + timeout_s
        while len(self.found) < count:
            assert time.monotonic() < end, f"{len(self.found)} of {count} dead letters within {timeout_s} s"
            self._poll(0.2)
        return self.found

    def has_only(self, count: int) -> bool:
        self._poll(0.1)
        return len(self.found) == count

    def _poll(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        if message is not None and message.error() is None:
            self.found.append(message)

    def close(self) -> None:
        self._consumer.close()


def _letters(broker: BrokerProcess, topic: str, count: int) -> list[Any]:
    reader = Reader(broker, topic)
    found = reader.read(count)
    throughout(lambda: reader.has_only(count), for_s=0.5)
    reader.close()
    return found


def _why(letter: Any) -> tuple[int, int, bytes]:
    """Which record, how often delivered, and the cause."""
    headers = dict(letter.headers())
    return (
        int(headers["__dlq.errors.offset"]),
        int(headers["__dlq.errors.delivery.count"]),
        headers["__dlq.errors.message"],
    )


def _fail(worker: Worker, poison: set[str], count: int, kind: str = "RELEASE") -> list[tuple[str, int]]:
    """Work until poison was delivered so often; what was delivered."""
    delivered: list[tuple[str, int]] = []
    failures = 0

    def work(batch: list[Any]) -> bool:
        nonlocal failures
        for message in batch:
            delivered.append((message.value().decode(), message.delivery_count()))
            is_bad = message.value().decode() in poison
            failures += is_bad
            worker.say(kind if is_bad else "ACCEPT", message)
        return failures >= count

    worker.until(work)
    return delivered


def test_a_rejected_record_becomes_a_dead_letter_with_all_it_had(broker: BrokerProcess, names: Names) -> None:
    create_topic(broker.bootstrap, names.letters, configs=TAKES_LETTERS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(names.topic, "fine", partition=0)
    producer.flush(DEADLINE_S)
    producer.produce(
        names.topic, "bad", key="k1", partition=0, headers=[("trace", b"7"), ("trace", b"8"), ("none", None)]
    )
    producer.flush(DEADLINE_S)
    worker = Worker(broker, names.group, names.topic)
    before_ms = time.time() * 1000
    _fail(worker, {"bad"}, 1, "REJECT")
    (letter,) = _letters(broker, names.letters, 1)
    assert (letter.key(), letter.value()) == (b"k1", b"bad")
    assert letter.headers() == [
        ("trace", b"7"),
        ("trace", b"8"),
        ("none", None),
        ("__dlq.errors.topic", names.topic.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"1"),
        ("__dlq.errors.group", names.group.encode()),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", REJECTED),
    ]
    assert letter.timestamp()[1] >= before_ms - 1_000
    worker.close()


def test_a_record_at_the_delivery_limit_becomes_a_dead_letter(broker: BrokerProcess, names: Names) -> None:
    create_topic(broker.bootstrap, names.letters, configs=TAKES_LETTERS)
    set_group(broker, names.group, share__delivery__count__limit="3")
    send(broker, names.topic, "fine", "bad", "good")
    worker = Worker(broker, names.group, names.topic)
    delivered = _fail(worker, {"bad"}, 3)
    assert [each for each in delivered if each[0] == "bad"] == [("bad", 1), ("bad", 2), ("bad", 3)]
    (letter,) = _letters(broker, names.letters, 1)
    assert (_why(letter), letter.value()) == ((1, 3, TOO_OFTEN), b"bad")
    worker.close()


def test_locks_that_end_lead_to_the_delivery_limit_too(broker: BrokerProcess, names: Names) -> None:
    create_topic(broker.bootstrap, names.letters, configs=TAKES_LETTERS)
    set_group(
        broker, names.group, share__delivery__count__limit="1", share__record__lock__duration__ms="1000"
    )
    send(broker, names.topic, "hangs")
    worker = Worker(broker, names.group, names.topic)
    assert seen(worker.take(1)) == [("hangs", 1)]
    (letter,) = _letters(broker, names.letters, 1)
    assert (_why(letter), letter.value()) == ((0, 1, TOO_OFTEN), b"hangs")
    worker.close()


def test_dead_letters_without_content_say_where_the_record_is(broker: BrokerProcess, names: Names) -> None:
    create_topic(broker.bootstrap, names.letters, configs=TAKES_LETTERS)
    set_group(broker, names.group, errors__deadletterqueue__copy__record__enable="false")
    send(broker, names.topic, "bad")
    worker = Worker(broker, names.group, names.topic)
    _fail(worker, {"bad"}, 1, "REJECT")
    (letter,) = _letters(broker, names.letters, 1)
    assert (letter.key(), letter.value()) == (None, None)
    assert _why(letter) == (0, 1, REJECTED)
    assert len(letter.headers()) == 6
    worker.close()


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_lost_while_dead_letters_have_no_place(
    broker: BrokerProcess, names: Names, exists: bool
) -> None:
    if exists:
        create_topic(broker.bootstrap, names.letters)
    send(broker, names.topic, "a", "bad", "b", "worse")
    worker = Worker(broker, names.group, names.topic)
    delivered = _fail(worker, {"bad", "worse"}, 2, "REJECT")
    assert sorted(delivered) == [("a", 1), ("b", 1), ("bad", 1), ("worse", 1)]
    send(broker, names.topic, "c")
    messages = worker.take(1)
    assert seen(messages) == [("c", 1)], "others are delivered meanwhile"
    worker.say("ACCEPT", *messages)
    # Nobody has to be there for it.
    worker.close()
    if exists:
        reader = Reader(broker, names.letters)
        throughout(lambda: reader.has_only(0), for_s=1.0)
        reader.close()
        _set_topic(broker, names.letters, TAKES_LETTERS)
    else:
        create_topic(broker.bootstrap, names.letters, configs=TAKES_LETTERS)
    letters = _letters(broker, names.letters, 2)
    assert [(letter.value(), _why(letter)[0]) for letter in letters] == [(b"bad", 1), (b"worse", 3)]


def test_dead_letters_that_wait_survive_a_crash_and_are_not_doubled(start_broker: StartBroker) -> None:
    own = start_broker({"auto.create.topics.enable": "false"})
    names = Names(unique_name("workers"), unique_name("jobs"), unique_name("dlq.jobs"))
    set_group(
        own,
        names.group,
        share__auto__offset__reset="earliest",
        errors__deadletterqueue__topic__name=names.letters,
    )
    create_topic(own.bootstrap, names.topic)
    send(own, names.topic, "a", "bad", "b")
    worker = Worker(own, names.group, names.topic)
    _fail(worker, {"bad"}, 1, "REJECT")
    own.kill()
    own.start()
    create_topic(own.bootstrap, names.letters, configs=TAKES_LETTERS)
    send(own, names.topic, "c")
    # Whoever fetches has the share partition's state read.
    messages = worker.take(1)
    assert seen(messages) == [("c", 1)]
    worker.say("ACCEPT", *messages)
    (letter,) = _letters(own, names.letters, 1)
    assert letter.value() == b"bad"
    own.kill()
    own.start()
    send(own, names.topic, "d")
    assert seen(worker.take(1)) == [("d", 1)]
    assert len(_letters(own, names.letters, 1)) == 1
    worker.close()


def test_a_missing_dead_letter_topic_is_created_if_the_broker_may(
    broker: BrokerProcess, names: Names
) -> None:
    _set_broker(broker, {"errors.deadletterqueue.auto.create.topics.enable": "true"})
    try:
        send(broker, names.topic, "bad")
        worker = Worker(broker, names.group, names.topic)
        _fail(worker, {"bad"}, 1, "REJECT")
        (letter,) = _letters(broker, names.letters, 1)
        assert letter.value() == b"bad"
        worker.close()
    finally:
        _set_broker(broker, {"errors.deadletterqueue.auto.create.topics.enable": "false"})
    admin = admin_client(broker.bootstrap)
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, names.letters)]).values()
    assert future.result(DEADLINE_S)["errors.deadletterqueue.group.enable"].value == "true"


def _set_topic(broker: BrokerProcess, topic: str, settings: dict[str, str]) -> None:
    _alter(broker, ResourceType.TOPIC, topic, settings)


def _set_broker(broker: BrokerProcess, settings: dict[str, str]) -> None:
    _alter(broker, ResourceType.BROKER, "1", settings)


def _alter(broker: BrokerProcess, kind: ResourceType, name: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = admin_client(broker.bootstrap)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)
