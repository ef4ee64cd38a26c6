"""Quotas with librdkafka: the rate is held, others are not slowed, and the metrics say so."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.raw import CREATE_TOPICS, METADATA, Closed, RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name

ALTER_CLIENT_QUOTAS: Final = 49
RATE: Final = 1_000_000
OVER_MAX: Final = 1.15
"""How far a rate may be over its quota."""
USED_MIN: Final = 0.5
"""How much of its quota a client must get. A busy machine gives it less than there would be."""
WARM_UP_S: Final = 4.0
MEASURED_S: Final = 6.0


@pytest.fixture(scope="module")
def broker(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MillraceProcess]:
    """Kafka's tool does not judge its disk at the end, as it does elsewhere: it would print every one of
    hundreds of thousands of small batches."""
    if against != "millrace":
        pytest.skip("a promise of Millrace's own")
    # A window of two seconds and not of ten, so that the burst at the start is over soon.
    settings = {"quota.window.num": "3", "num.partitions": "1"}
    broker = MillraceProcess(tmp_path_factory.mktemp("millrace"), settings)
    broker.start()
    yield broker
    broker.end()


def set_quota(broker: MillraceProcess, entity: Mapping[str, str | None], **limits: float | None) -> None:
    with RawConnection((broker.host, broker.port)) as connection:
        answer = connection.call(
            ALTER_CLIENT_QUOTAS,
            1,
            {
                "entries": [
                    {
                        "entity": [
                            {"entity_type": kind.replace("_", "-"), "entity_name": name}
                            for kind, name in entity.items()
                        ],
                        "ops": [
                            {"key": key, "value": value or 0.0, "remove": value is None}
                            for key, value in limits.items()
                        ],
                    }
                ],
                "validate_only": False,
            },
        )
    assert answer["entries"][0]["error_code"] == "none", answer


class Load:
    """A producer that sends as much as it can, from a thread of its own."""

    def __init__(
        self, broker: MillraceProcess, topic: str, client_id: str, size_bytes: int = 10_000, **more: Any
    ) -> None:
        self.acknowledged = 0
        self._value = bytes(size_bytes)
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "client.id": client_id,
                "linger.ms": 5,
                "batch.size": 100_000,
                "queue.buffering.max.messages": 200,
                "message.timeout.ms": 60_000,
                "enable.idempotence": True,
                **more,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, self._value, on_delivery=self._told)
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)
        self._producer.purge()
        self._producer.flush(5)
        del self._producer

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged += len(message)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(20)


def keeps_to(rate: float) -> bool:
    return USED_MIN * RATE < rate < OVER_MAX * RATE


def measured(count: Any) -> float:
    """How much is counted a second, after the burst at the start."""
    time.sleep(WARM_UP_S)
    before, started = count(), time.monotonic()
    time.sleep(MEASURED_S)
    return float((count() - before) / (time.monotonic() - started))


@pytest.fixture
def loads() -> Iterator[list[Load]]:
    running: list[Load] = []
    yield running
    for load in running:
        load.end()


@pytest.mark.parametrize("acks", ["all", "0"])
def test_a_producer_keeps_to_its_rate_and_others_are_not_slowed(
    broker: MillraceProcess, loads: list[Load], acks: str
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("quota"))
    client_id = f"limited-{acks}"
    set_quota(broker, {"client_id": client_id}, producer_byte_rate=RATE)
    more: dict[str, Any] = {} if acks == "all" else {"acks": acks, "enable.idempotence": False}
    loads.append(Load(broker, topic, client_id, **more))
    other = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "free", "linger.ms": 0})
    other.produce(topic, b"first")
    other.flush(10)
    took = []
    for _ in range(100):
        started = time.monotonic()
        other.produce(topic, bytes(100))
        assert other.flush(10) == 0
        took.append(time.monotonic() - started)
    rate = measured(lambda: loads[0].acknowledged)
    assert sorted(took)[90] < 0.1, "others are answered at once"
    if acks == "all":
        assert keeps_to(rate), rate
    else:
        # librdkafka counts what it has handed to its socket.
        assert rate == pytest.approx(RATE, rel=0.5)
    _, page = broker.http("/metrics")
    whom = f'client_id="{client_id}",quota="producer_byte_rate",user="ANONYMOUS"'
    found = re.search(rf"millrace_quota_throttles_total{{{whom}}} ([0-9.]+)", page)
    assert found is not None
    assert float(found[1]) > 0
    assert f'millrace_quota_bound{{client_id="{client_id}",quota="producer_byte_rate"' in page


def test_a_consumer_keeps_to_its_rate_and_loses_nothing(broker: MillraceProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("quota"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(3_000):
        producer.produce(topic, number.to_bytes(4, "big") + bytes(9_996))
        producer.poll(0)
    assert producer.flush(30) == 0
    set_quota(broker, {"client_id": "reader"}, consumer_byte_rate=RATE)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "reader",
            "group.id": unique_name("readers"),
            # Little at a time, or the last answer alone could be a sixth of what is measured.
            "fetch.message.max.bytes": 50_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    arrived: list[tuple[float, int]] = []
    started = time.monotonic()
    # Two of the window's bursts are a sixth of this, whenever they come.
    while time.monotonic() - started < WARM_UP_S + 2 * MEASURED_S:
        for message in consumer.consume(100, timeout=0.2):
            assert message.error() is None
            value = message.value()
            assert value is not None
            arrived.append((time.monotonic() - started, int.from_bytes(value[:4], "big")))
    assert [number for _, number in arrived] == list(range(len(arrived))), "in order, and none is missing"
    late = [at for at, _ in arrived if at > WARM_UP_S]
    rate = 10_000 * len(late) / (2 * MEASURED_S)
    assert keeps_to(rate), rate
    set_quota(broker, {"client_id": "reader"}, consumer_byte_rate=None)
    started = time.monotonic()
    while len(arrived) < 3_000 and time.monotonic() - started < 10:
        arrived += [(0.0, 0) for _ in consumer.consume(100, timeout=0.2)]
    assert len(arrived) == 3_000, "without the quota the rest comes at once"
    consumer.close()


def test_a_request_percentage_slows_a_client_down(broker: MillraceProcess, loads: list[Load]) -> None:
    topic = create_topic(broker.bootstrap, unique_name("quota"))
    # Small requests: it is their number that takes time, and the disk stays nearly empty.
    loads.append(Load(broker, topic, "busy", 100, **{"linger.ms": 0, "batch.num.messages": 10}))
    free = measured(lambda: loads[0].acknowledged)
    set_quota(broker, {"client_id": "busy"}, request_percentage=0.5)
    held = measured(lambda: loads[0].acknowledged)
    assert held < free / 3
    set_quota(broker, {"client_id": "busy"}, request_percentage=None)


def test_topics_beyond_the_rate_are_refused_or_paid_for_afterwards(
    broker: MillraceProcess,
) -> None:
    set_quota(broker, {"user": "ANONYMOUS"}, controller_mutation_rate=2.0)
    try:
        # librdkafka asks by a version that knows no refusal: 24 partitions are granted, 22 were saved up.
        admin = admin_client(broker.bootstrap)
        names = [unique_name("mutation") for _ in range(3)]
        for result in admin.create_topics([NewTopic(name, 8, 1) for name in names]).values():
            result.result(20)
        with RawConnection((broker.host, broker.port)) as connection:
            answer = connection.call(CREATE_TOPICS, 7, new_topic_request(unique_name("mutation")))
            assert answer["topics"][0]["error_code"] == "throttling_quota_exceeded"
            assert answer["throttle_time"] > 0
            started = time.monotonic()
            answer = connection.call(CREATE_TOPICS, 7, new_topic_request(unique_name("mutation")))
            assert answer["topics"][0]["error_code"] == "none", "the debt is paid by then"
            assert time.monotonic() - started > 0.1, "nothing was read before"
    finally:
        set_quota(broker, {"user": "ANONYMOUS"}, controller_mutation_rate=None)


def new_topic_request(name: str) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [topic], "timeout": 10_000, "validate_only": False}


def test_an_address_that_connects_too_fast_is_held_and_closed(broker: MillraceProcess) -> None:
    set_quota(broker, {"ip": "127.0.0.7"}, connection_creation_rate=2.0)

    def is_served() -> bool:
        with RawConnection((broker.host, broker.port), source=("127.0.0.7", 0)) as connection:
            try:
                connection.call(METADATA, 1, {"topics": []})
            except (Closed, ConnectionError):
                return False
        return True

    served = [is_served() for _ in range(8)]
    assert served[:4] == [True] * 4
    assert not all(served)
    eventually(is_served)
    _, page = broker.http("/metrics")
    assert 'millrace_connections_throttled_total{reason="address_rate"}' in page
