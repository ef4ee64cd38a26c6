"""Settings that change on a running broker, what cleaning does with them, and topics that come and go."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.compat.clients import ConfluentClient
from tests.compat.messages import Message
from tests.compat.test_produce import confluent_outcome
from tests.conftest import StartBroker
from tests.harness.batches import batch, codec_of, headers_of
from tests.harness.process import BrokerProcess, eventually, throughout
from tests.harness.protocol import fetch_one, fetch_records, list_offset, produce, topic_id, topic_metadata
from tests.harness.raw import INCREMENTAL_ALTER_CONFIGS, RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name, wait_for_topic

DAY_MS = 86_400_000
TOPIC, BROKER = 2, 4
OPERATION_SET, OPERATION_DELETE = 0, 1


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker that cleans all the time, and creates topics that clients ask for."""
    return start_broker(
        {
            "auto.create.topics.enable": "true",
            "num.partitions": "2",
            "log.retention.check.interval.ms": "300",
            "log.initial.task.delay.ms": "100",
            "log.segment.delete.delay.ms": "500",
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.min.compaction.lag.ms": "0",
        }
    )


def alter(broker: BrokerProcess, kind: int, name: str, **changes: str | None) -> None:
    """Set settings (underscores for dots), or delete those that are None."""
    configs = [
        {
            "name": key.replace("_", "."),
            "config_operation": OPERATION_DELETE if value is None else OPERATION_SET,
            "value": value,
        }
        for key, value in changes.items()
    ]
    request = {
        "resources": [{"resource_type": kind, "resource_name": name, "configs": configs}],
        "validate_only": False,
    }
    with RawConnection((broker.host, broker.port)) as connection:
        (answer,) = connection.call(INCREMENTAL_ALTER_CONFIGS, 1, request)["responses"]
    assert answer["error_code"] == "none", answer


def log_start(broker: BrokerProcess, topic: str) -> int:
    with RawConnection((broker.host, broker.port)) as connection:
        return int(list_offset(connection, topic, -2)["offset"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_message_limit_of_a_topic_changes_at_once(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("limit"))
    assert confluent_outcome(broker.bootstrap, topic, {}, value=bytes(5_000)) == 0
    alter(broker, TOPIC, topic, max_message_bytes="2000")
    eventually(
        lambda: confluent_outcome(broker.bootstrap, topic, {}, value=bytes(5_000)) == "MSG_SIZE_TOO_LARGE"
    )
    alter(broker, TOPIC, topic, max_message_bytes=None)
    eventually(lambda: isinstance(confluent_outcome(broker.bootstrap, topic, {}, value=bytes(5_000)), int))


def test_the_brokers_default_reaches_topics_without_their_own(broker: BrokerProcess) -> None:
    plain = create_topic(broker.bootstrap, unique_name("plain"))
    own = create_topic(broker.bootstrap, unique_name("own"), configs={"max.message.bytes": "1000000"})
    alter(broker, BROKER, "", message_max_bytes="3000")
    try:
        eventually(
            lambda: confluent_outcome(broker.bootstrap, plain, {}, value=bytes(5_000)) == "MSG_SIZE_TOO_LARGE"
        )
        assert confluent_outcome(broker.bootstrap, own, {}, value=bytes(5_000)) == 0
    finally:
        alter(broker, BROKER, "", message_max_bytes=None)
    eventually(lambda: isinstance(confluent_outcome(broker.bootstrap, plain, {}, value=bytes(5_000)), int))


def test_the_compression_of_a_topic_changes_at_once(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("codec"))
    data = batch([b"squeezable " * 100] * 10, timestamp_ms=now_ms())

    def codec_of_next() -> int:
        with RawConnection((broker.host, broker.port)) as connection:
            offset = produce(connection, topic, data)["base_offset"]
            return codec_of(headers_of(fetch_records(connection, topic, 0, offset))[0])

    assert codec_of_next() == 0
    alter(broker, TOPIC, topic, compression_type="zstd")
    eventually(lambda: codec_of_next() == 4)
    alter(broker, TOPIC, topic, compression_type=None)
    eventually(lambda: codec_of_next() == 0)


def test_segments_roll_at_the_new_size(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("rolling"))
    directory = broker.data_dir / f"{topic}-0"
    messages = [Message(key=None, value=bytes(100_000))] * 25
    ConfluentClient().write(broker.bootstrap, topic, 0, messages, "none")
    assert len(list(directory.glob("*.log"))) == 1
    alter(broker, TOPIC, topic, segment_bytes=str(1 << 20))
    written = 25

    def has_rolled() -> bool:
        nonlocal written
        ConfluentClient().write(broker.bootstrap, topic, 0, messages[:10], "none")
        written += 10
        return len(list(directory.glob("*.log"))) >= 3

    eventually(has_rolled)
    assert written <= 75, "the new size is a megabyte, and each write is one"
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, written)})
    assert [message.offset for message in received] == list(range(written))


def test_retention_by_time_begins_when_it_is_set(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("by-time"), configs={"retention.ms": "-1"})
    old = [Message(key=None, value=b"%d" % number, timestamp_ms=now_ms() - DAY_MS) for number in range(10)]
    ConfluentClient().write(broker.bootstrap, topic, 0, old, "none")
    throughout(lambda: log_start(broker, topic) == 0, 1.0)
    alter(broker, TOPIC, topic, retention_ms="60000")
    eventually(lambda: log_start(broker, topic) == 10)
    # Offsets go on where they were (F22).
    ConfluentClient().write(broker.bootstrap, topic, 0, [Message(key=None, value=b"new")], "none")
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (10, 11)})
    assert [(message.offset, message.value) for message in received] == [(10, b"new")]
    with RawConnection((broker.host, broker.port)) as connection:
        assert fetch_one(connection, topic, 0, 9)["error_code"] == "offset_out_of_range"


def test_retention_by_size_keeps_the_newest(broker: BrokerProcess) -> None:
    configs = {"segment.bytes": str(1 << 20)}
    topic = create_topic(broker.bootstrap, unique_name("by-size"), configs=configs)
    for _ in range(6):
        ConfluentClient().write(
            broker.bootstrap, topic, 0, [Message(key=None, value=bytes(100_000))] * 10, "none"
        )
    assert log_start(broker, topic) == 0
    alter(broker, TOPIC, topic, retention_bytes=str(2 << 20))
    eventually(lambda: log_start(broker, topic) > 0)
    start = log_start(broker, topic)
    assert start <= 42
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (start, 60)})
    assert [message.offset for message in received] == list(range(start, 60))
    # Files of deleted segments go away after their delay.
    directory = broker.data_dir / f"{topic}-0"
    eventually(lambda: not list(directory.glob("*.deleted")))


def test_compaction_keeps_the_last_value_of_every_key(broker: BrokerProcess) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(1 << 20),
        "delete.retention.ms": "0",
    }
    topic = create_topic(broker.bootstrap, unique_name("compact"), configs=configs)
    rounds = 12
    for number in range(rounds):
        messages = [
            Message(
                key=b"key %d" % key, value=b"%d " % number + bytes(20_000), headers=(("r", b"%d" % number),)
            )
            for key in range(10)
        ]
        if number == rounds - 3:
            messages.append(Message(key=b"key 3", value=None))
        ConfluentClient().write(broker.bootstrap, topic, 0, messages, "none" if number % 2 else "zstd")
    count = rounds * 10 + 1
    # The active segment is never cleaned: fill and roll it.
    filler = [Message(key=b"filler", value=bytes(600_000))] * 2
    ConfluentClient().write(broker.bootstrap, topic, 0, filler * 2, "none")

    def stored() -> list[Any]:
        found: list[Any] = []
        with RawConnection((broker.host, broker.port)) as connection:
            offset = 0
            while records := fetch_records(connection, topic, 0, offset):
                found += headers_of(records)
                offset = found[-1][0] + found[-1][6] + 1
        return found

    before = sum(header[12] for header in stored())
    assert before <= count + 4
    eventually(lambda: sum(header[12] for header in stored() if header[0] < count) < 40, deadline_s=30)
    # Every key's newest value is still there, at its own offset.
    kept = sum(header[12] for header in stored())
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, kept)})
    latest = {message.key: message for message in received}
    for key in range(10):
        newest = latest[b"key %d" % key]
        assert newest.value is not None
        assert newest.value.startswith(b"%d " % (rounds - 1))
        assert newest.offset == (rounds - 1) * 10 + 1 + key
        assert newest.headers == (("r", b"%d" % (rounds - 1)),)


def test_asking_for_a_topic_creates_it_only_if_the_client_may(broker: BrokerProcess) -> None:
    refused, wanted = unique_name("auto"), unique_name("auto")
    with RawConnection((broker.host, broker.port)) as connection:
        assert topic_metadata(connection, refused)["error_code"] == "unknown_topic_or_partition"
        assert (
            topic_metadata(connection, "not allowed", create=True)["error_code"] == "invalid_topic_exception"
        )
        first = topic_metadata(connection, wanted, create=True)["error_code"]
        # Kafka answers before the topic is there; having it at once is as good.
        assert first in ("unknown_topic_or_partition", "leader_not_available", "none")
        eventually(lambda: topic_metadata(connection, wanted)["error_code"] == "none")
        assert len(topic_metadata(connection, wanted)["partitions"]) == 2
        assert topic_metadata(connection, refused)["error_code"] == "unknown_topic_or_partition"
    topic = unique_name("by-producer")
    assert confluent_outcome(broker.bootstrap, topic, {}, value=b"x") == 0


def test_a_recreated_topic_is_another_topic(broker: BrokerProcess) -> None:
    # F29: the name is the same, the id is not, and nothing of the old one is seen again.
    name = create_topic(broker.bootstrap, unique_name("phoenix"))
    old = [Message(key=None, value=f"old {name}".encode())] * 20
    ConfluentClient().write(broker.bootstrap, name, 0, old, "none")
    with RawConnection((broker.host, broker.port)) as connection:
        old_id = topic_id(connection, name)
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([name])[name].result(15)
    eventually(lambda: name not in admin.list_topics(timeout=60).topics)
    create_topic(broker.bootstrap, name)
    wait_for_topic(admin, name, 1)
    with RawConnection((broker.host, broker.port)) as connection:
        assert topic_id(connection, name) != old_id
        assert fetch_records(connection, name, 0, 0) == b""
    new = [Message(key=None, value=f"new {name}".encode())] * 5
    ConfluentClient().write(broker.bootstrap, name, 0, new, "none")
    received = ConfluentClient().read(broker.bootstrap, {(name, 0): (0, 5)})
    assert [message.value for message in received] == [message.value for message in new]


def test_deleted_topics_leave_the_disk(broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("gone"), configs={"file.delete.delay.ms": "200"})
    ConfluentClient().write(broker.bootstrap, name, 0, [Message(key=None, value=bytes(100_000))], "none")
    assert (broker.data_dir / f"{name}-0").is_dir()
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([name])[name].result(15)
    eventually(lambda: not list(broker.data_dir.glob(f"{name}-0*")), deadline_s=30)
