"""What one client writes, every other client reads identically: codecs, keys, headers, timestamps, nulls."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest

from tests.compat.clients import (
    CODECS,
    AiokafkaClient,
    Client,
    ConfluentClient,
    JavaClient,
    KafkaPythonClient,
    KcatClient,
    as_kcat_prints,
)
from tests.compat.messages import Message, corpus
from tests.harness.java import JavaHost
from tests.harness.kcat import Kcat
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "java")


def make_client(name: str, request: pytest.FixtureRequest) -> Client:
    if name == "kcat":
        kcat: Kcat = request.getfixturevalue("kcat")
        return KcatClient(kcat)
    if name == "java":
        java: JavaHost = request.getfixturevalue("java")
        return JavaClient(java)
    simple: dict[str, type[ConfluentClient | KafkaPythonClient | AiokafkaClient]] = {
        "confluent-kafka": ConfluentClient,
        "kafka-python": KafkaPythonClient,
        "aiokafka": AiokafkaClient,
    }
    return simple[name]()


@dataclass(frozen=True, slots=True)
class Written:
    topic: str
    messages: list[Message]
    has_timestamps: bool
    written_from_ms: int
    written_to_ms: int


@pytest.fixture(scope="module")
def written(broker: BrokerProcess, request: pytest.FixtureRequest) -> list[Written]:
    """One topic for each client and codec, filled with the corpus."""
    topics = []
    for client_name in CLIENTS:
        try:
            client = make_client(client_name, request)
        except pytest.skip.Exception:
            continue
        topics += [_write(broker, client, codec) for codec in CODECS]
    return topics


def _write(broker: BrokerProcess, client: Client, codec: str) -> Written:
    topic = create_topic(broker.bootstrap, unique_name(f"{client.name}-{codec}"))
    now_ms = time.time_ns() // 1_000_000
    messages = [message for message in corpus(topic, now_ms) if client.representable(message)]
    assert len(messages) > 100
    offsets = client.write(broker.bootstrap, topic, 0, messages, codec)
    if client.name == "kcat":
        messages = [_as_kcat_wrote(message) for message in messages]
    else:
        assert offsets == list(range(len(messages)))
    return Written(topic, messages, client.name != "kcat", now_ms, time.time_ns() // 1_000_000)


def _as_kcat_wrote(message: Message) -> Message:
    return replace(
        message,
        key=message.key or None,
        value=message.value or None,
        headers=(("written-by", b"kcat"),),
        timestamp_ms=None,
    )


@pytest.mark.parametrize("reader_name", CLIENTS)
def test_every_client_reads_what_every_other_client_wrote(
    reader_name: str, broker: BrokerProcess, written: list[Written], request: pytest.FixtureRequest
) -> None:
    reader = make_client(reader_name, request)
    assert len(written) >= 3 * len(CODECS)

    spans = {(topic.topic, 0): (0, len(topic.messages)) for topic in written}
    received = reader.read(broker.bootstrap, spans)

    for topic in written:
        mine = [message for message in received if message.topic == topic.topic]
        assert [message.offset for message in mine] == list(range(len(topic.messages))), topic.topic
        for expected, got in zip(topic.messages, mine, strict=True):
            headers = as_kcat_prints(expected.headers) if reader_name == "kcat" else expected.headers
            assert (got.key, got.value, got.headers) == (expected.key, expected.value, headers)
            if topic.has_timestamps:
                assert got.timestamp_ms == expected.timestamp_ms
            else:
                assert topic.written_from_ms <= got.timestamp_ms <= topic.written_to_ms


@pytest.mark.parametrize("reader_name", CLIENTS)
def test_reading_can_start_at_any_offset_inside_a_batch(
    reader_name: str, broker: BrokerProcess, written: list[Written], request: pytest.FixtureRequest
) -> None:
    reader = make_client(reader_name, request)
    topic = written[0]
    end = len(topic.messages)

    received = reader.read(broker.bootstrap, {(topic.topic, 0): (end - 7, end)})

    assert [message.offset for message in received] == list(range(end - 7, end))
    assert received[0].value == topic.messages[end - 7].value
