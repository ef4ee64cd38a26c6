"""Produce on the wire: sequences, bad batches (S21), versions, acks; with Apache Kafka's error codes."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.harness.batches import HEADER, batch, headers_of
from tests.harness.process import BrokerProcess
from tests.harness.protocol import (
    PRODUCE_VERSION,
    end_offset,
    fetch_records,
    init_producer_id,
    produce,
    produce_request,
    topic_id,
    topic_metadata,
)
from tests.harness.raw import FIND_COORDINATOR, METADATA, PRODUCE, Closed, RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name

GOOD = batch([b"a", b"b"])


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[RawConnection]:
    with RawConnection((broker.host, broker.port)) as opened:
        yield opened


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return create_topic(broker.bootstrap, unique_name("wire"), partitions=2)


def with_batch_length(data: bytes, length: int) -> bytes:
    return data[:8] + struct.pack(">i", length) + data[12:]


def with_flipped_byte(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0xFF
    return bytes(changed)


BAD_BATCHES = {
    "CRC of the records": (with_flipped_byte(GOOD, len(GOOD) - 3), {"corrupt_message"}),
    "CRC of the timestamps": (with_flipped_byte(GOOD, 30), {"corrupt_message"}),
    "count above last offset delta": (batch([b"a"], count=3), {"invalid_record"}),
    "count below last offset delta": (batch([b"a", b"b"], count=1), {"invalid_record"}),
    "last offset delta too large": (batch([b"a", b"b"], last_offset_delta=5), {"invalid_record"}),
    "last offset delta negative": (batch([b"a"], last_offset_delta=-1), {"invalid_record"}),
    "last offset delta overflows": (batch([b"a"], last_offset_delta=0x7FFFFFFF), {"invalid_record"}),
    "no records": (batch([], count=0, last_offset_delta=0), {"invalid_record"}),
    "negative count": (batch([b"a"], count=-1), {"invalid_record"}),
    "magic 0": (batch([b"a"], magic=0), {"invalid_record"}),
    "magic 1": (batch([b"a"], magic=1), {"invalid_record"}),
    "magic 3": (batch([b"a"], magic=3), {"corrupt_message"}),
    "control bit": (batch([b"a"], attributes=0x20), {"invalid_record"}),
    "base offset not zero": (struct.pack(">q", 5) + GOOD[8:], {"invalid_record"}),
    "producer id without sequence": (batch([b"a"], producer=(5, 0, -1)), {"invalid_record"}),
    "truncated": (GOOD[:-3], {"invalid_record", "corrupt_message"}),
    "truncated header": (GOOD[:40], {"invalid_record", "corrupt_message"}),
    "empty": (b"", {"invalid_record"}),
    "two batches": (GOOD + GOOD, {"invalid_record"}),
    "batch length 0": (with_batch_length(GOOD, 0), {"corrupt_message"}),
    "batch length -1": (with_batch_length(GOOD, -1), {"corrupt_message"}),
    "batch length too small": (with_batch_length(GOOD, 20), {"corrupt_message", "invalid_record"}),
    # Kafka says UNKNOWN_SERVER_ERROR in these: its own fault handling, not a promise to clients.
    "batch length huge": (
        with_batch_length(GOOD, 0x7FFFFFFF),
        {"unknown_server_error", "corrupt_message", "invalid_record"},
    ),
    "unknown codec": (
        batch([b"a"], attributes=5),
        {"unknown_server_error", "corrupt_message", "invalid_record", "unsupported_compression_type"},
    ),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_refused_alone(case: str, connection: RawConnection, topic: str, against: str) -> None:
    data, errors = BAD_BATCHES[case]
    request = produce_request({(topic, 0): data, (topic, 1): GOOD})
    answer = connection.call(PRODUCE, PRODUCE_VERSION, request)
    parts = {part["index"]: part for part in answer["responses"][0]["partition_responses"]}
    assert parts[0]["error_code"] in errors
    assert parts[0]["base_offset"] == -1
    # The connection and, other than in some cases with Kafka, the request's other partition are unharmed.
    if against != "kafka":
        assert (parts[1]["error_code"], parts[1]["base_offset"]) == ("none", 0)
    assert end_offset(connection, topic, 0) == 0
    assert end_offset(connection, topic, 1) == (2 if parts[1]["error_code"] == "none" else 0)


def test_bytes_after_the_batch_are_never_stored(connection: RawConnection, topic: str) -> None:
    # Kafka drops them and takes the batch; refusing the whole is as safe.
    outcome = produce(connection, topic, GOOD + b"xyz")
    assert outcome["error_code"] in ("none", "invalid_record", "corrupt_message")
    stored = fetch_records(connection, topic, 0, 0)
    assert len(stored) == (len(GOOD) if outcome["error_code"] == "none" else 0)


def test_the_stored_batch_differs_from_the_sent_one_only_in_offset_and_epoch(
    connection: RawConnection, topic: str
) -> None:
    first = batch([b"1", None, b""], keys=[b"k", None, b""], timestamp_ms=1_700_000_000_123)
    produce(connection, topic, first)
    assert produce(connection, topic, GOOD)["base_offset"] == 3
    stored = fetch_records(connection, topic, 0, 0)
    expected = bytearray(first + GOOD)
    for position, offset in ((0, 0), (len(first), 3)):
        struct.pack_into(">q", expected, position, offset)
        epoch = HEADER.unpack_from(stored, position)[2]
        assert epoch >= 0
        struct.pack_into(">i", expected, position + 12, epoch)
    assert stored == bytes(expected)


def test_sequences_are_checked_and_five_batches_are_remembered(connection: RawConnection, topic: str) -> None:
    producer_id, epoch = init_producer_id(connection)

    def send(sequence: int, epoch: int = epoch) -> tuple[str, int]:
        data = batch([b"s"], producer=(producer_id, epoch, sequence))
        outcome = produce(connection, topic, data)
        return outcome["error_code"], outcome["base_offset"]

    assert [send(sequence) for sequence in range(7)] == [("none", sequence) for sequence in range(7)]
    refused = ("out_of_order_sequence_number", -1)
    # A repeat gets the original offset; one older than the five remembered cannot be told from a gap.
    assert [send(sequence) for sequence in (6, 2, 4)] == [("none", 6), ("none", 2), ("none", 4)]
    assert [send(sequence) for sequence in (1, 0, 9)] == [refused] * 3
    assert send(5, epoch + 1) == refused
    assert send(0, epoch + 1) == ("none", 7)
    assert send(7, epoch) == ("invalid_producer_epoch", -1)
    assert send(1, epoch + 1) == ("none", 8)
    assert end_offset(connection, topic) == 9


def test_sequences_are_per_partition_and_wrap(connection: RawConnection, topic: str) -> None:
    producer_id, epoch = init_producer_id(connection)
    for partition in (0, 1):
        outcome = produce(connection, topic, batch([b"s"], producer=(producer_id, epoch, 0)), partition)
        assert outcome["base_offset"] == 0
    # An unknown producer may start anywhere: here just before the largest sequence.
    largest = 0x7FFFFFFF
    last = batch([b"1", b"2"], producer=(producer_id + 1_000_000, 0, largest - 1))
    assert produce(connection, topic, last)["error_code"] == "none"
    wrapped = batch([b"3"], producer=(producer_id + 1_000_000, 0, 0))
    assert produce(connection, topic, wrapped)["error_code"] == "none"
    assert end_offset(connection, topic) == 4


def test_producer_ids_are_never_given_twice(connection: RawConnection, broker: BrokerProcess) -> None:
    first = [init_producer_id(connection)[0] for _ in range(50)]
    with RawConnection((broker.host, broker.port)) as other:
        second = [init_producer_id(other)[0] for _ in range(50)]
    assert len(set(first + second)) == 100


def test_targets_that_do_not_exist_are_unknown(connection: RawConnection, topic: str) -> None:
    assert produce(connection, unique_name("absent"), GOOD)["error_code"] == "unknown_topic_or_partition"
    assert produce(connection, topic, GOOD, partition=9)["error_code"] == "unknown_topic_or_partition"
    assert produce(connection, topic, GOOD, partition=-1)["error_code"] == "unknown_topic_or_partition"
    request = produce_request({("x", 0): GOOD})
    request["topic_data"] = [
        {"topic_id": uuid.uuid4(), "partition_data": [{"index": 0, "records": GOOD}]},
        {"topic_id": topic_id(connection, topic), "partition_data": [{"index": 0, "records": GOOD}]},
    ]
    answer = connection.call(PRODUCE, 13, request)
    errors = [entry["partition_responses"][0]["error_code"] for entry in answer["responses"]]
    assert sorted(errors) == ["none", "unknown_topic_id"]


def test_only_three_levels_of_acks_exist(connection: RawConnection, topic: str) -> None:
    assert produce(connection, topic, GOOD, acks=2)["error_code"] == "invalid_required_acks"
    assert produce(connection, topic, GOOD, acks=-2)["error_code"] == "invalid_required_acks"
    assert end_offset(connection, topic) == 0
    assert produce(connection, topic, GOOD, acks=1)["base_offset"] == 0


def test_acks_0_gets_no_answer_but_is_stored(connection: RawConnection, topic: str) -> None:
    for _ in range(3):
        connection.send(PRODUCE, PRODUCE_VERSION, produce_request({(topic, 0): GOOD}, acks=0))
    # The next answer on the connection belongs to the next request.
    assert connection.call(METADATA, 1, {"topics": []})["topics"] == []
    assert end_offset(connection, topic) == 6


def test_an_error_with_acks_0_closes_the_connection(connection: RawConnection) -> None:
    # The only way to tell a producer that waits for no answer.
    request = produce_request({(unique_name("absent"), 0): GOOD}, acks=0)
    connection.send(PRODUCE, PRODUCE_VERSION, request)
    with pytest.raises((Closed, ConnectionError)):
        connection.call(METADATA, 1, {"topics": []})


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(version: int, connection: RawConnection, topic: str) -> None:
    request = produce_request({(topic, 0): GOOD})
    if version >= 13:
        partitions = request["topic_data"][0]["partition_data"]
        request["topic_data"] = [{"topic_id": topic_id(connection, topic), "partition_data": partitions}]
    for expected in (0, 2):
        answer = connection.call(PRODUCE, version, request)
        outcome = answer["responses"][0]["partition_responses"][0]
        assert (outcome["error_code"], outcome["base_offset"]) == ("none", expected)
    stored = headers_of(fetch_records(connection, topic, 0, 0))
    assert [header[0] for header in stored] == [0, 2]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_versions_of_old_formats_are_refused(version: int, broker: BrokerProcess) -> None:
    # Listed for clients that look only at the lowest version; answered by closing, as Kafka 4 does.
    with RawConnection((broker.host, broker.port)) as connection:
        header = struct.pack(">hhih3s", PRODUCE, version, 1, 3, b"old")
        connection.send_frame(header + struct.pack(">hii", 1, 1_000, 0))
        assert connection.is_closed_by_peer()


INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def internal_topics(connection: RawConnection) -> tuple[str, ...]:
    """Made by whoever looks for their coordinators first."""
    for key_type, name in enumerate(INTERNAL):
        deadline = time.monotonic() + 60
        while True:
            request = {"key_type": key_type, "coordinator_keys": ["somebody"]}
            (found,) = connection.call(FIND_COORDINATOR, 4, request)["coordinators"]
            if found["error_code"] == "none" and topic_metadata(connection, name)["error_code"] == "none":
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    return INTERNAL


def alter_topic(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = admin_client(bootstrap)
    admin.incremental_alter_configs([resource])[resource].result(10)


@pytest.mark.parametrize("acks", [1, -1])
def test_clients_do_not_write_to_internal_topics(
    connection: RawConnection, topic: str, internal_topics: tuple[str, ...], acks: int
) -> None:
    """Whatever a coordinator finds there, it believes."""
    keyed = batch([b"value"], keys=[b"key"])
    for name in internal_topics:
        end_before = end_offset(connection, name)
        for _ in range(3):
            assert produce(connection, name, keyed, acks=acks)["error_code"] == "invalid_topic_exception"
        by_id = produce_request({(name, 0): keyed, (topic, 0): GOOD}, acks)
        for entry in by_id["topic_data"]:
            entry["topic_id"] = topic_id(connection, entry.pop("name"))
        answer = connection.call(PRODUCE, 13, by_id)
        errors = [entry["partition_responses"][0]["error_code"] for entry in answer["responses"]]
        assert sorted(errors) == ["invalid_topic_exception", "none"]
        assert end_offset(connection, name) == end_before


def test_a_short_way_to_the_log_does_not_lead_to_internal_topics_either(
    connection: RawConnection, broker: BrokerProcess, internal_topics: tuple[str, ...]
) -> None:
    """With another clean-up policy their batches need no preparation, and many small ones come at once."""
    name = internal_topics[0]
    alter_topic(broker.bootstrap, name, {"cleanup.policy": "delete"})
    try:
        end_before = end_offset(connection, name)
        request = produce_request({(name, 0): GOOD})
        sent = [connection.send(PRODUCE, PRODUCE_VERSION, request) for _ in range(100)]
        answers = [connection.receive(PRODUCE, PRODUCE_VERSION, each) for each in sent]
        found = {answer["responses"][0]["partition_responses"][0]["error_code"] for answer in answers}
        assert found == {"invalid_topic_exception"}
        assert end_offset(connection, name) == end_before
    finally:
        alter_topic(broker.bootstrap, name, {"cleanup.policy": "compact"})


def test_an_internal_topic_and_acks_0_close_the_connection(
    connection: RawConnection, internal_topics: tuple[str, ...]
) -> None:
    connection.send(PRODUCE, PRODUCE_VERSION, produce_request({(internal_topics[0], 0): GOOD}, acks=0))
    with pytest.raises((Closed, ConnectionError)):
        connection.call(METADATA, 1, {"topics": []})


def test_a_real_client_is_told_that_it_cannot_write_to_internal_topics(
    broker: BrokerProcess, internal_topics: tuple[str, ...]
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 10_000})
    outcomes: list[str | None] = []
    for name in internal_topics:
        producer.produce(
            name,
            b"value",
            b"key",
            0,
            on_delivery=lambda error, _: outcomes.append(None if error is None else error.name()),
        )
    assert producer.flush(15) == 0
    assert outcomes == ["TOPIC_EXCEPTION", "TOPIC_EXCEPTION"]
