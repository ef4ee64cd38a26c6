"""Bytes that no honest client sends (S1-S5, S20, S22): the sender loses its connection, others nothing."""

from __future__ import annotations

import gzip
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from kio.index import load_request_schema

from tests.harness.batches import batch, record
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually, throughout
from tests.harness.protocol import (
    FETCH_VERSION,
    end_offset,
    fetch_partition,
    fetch_request,
    init_producer_id,
    produce,
    produce_request,
    topic_id,
)
from tests.harness.raw import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Closed,
    RawConnection,
    encode_request,
)
from tests.harness.topics import create_topic, unique_name
from tests.integration.conftest import StartMillrace

MEGABYTE = 1 << 20
SLOW_BYTE_S = 0.5
"""Between two bytes of a sender that never gets done in time."""


@pytest.fixture(scope="module")
def broker(start_millrace: StartMillrace) -> MillraceProcess:
    return start_millrace(
        {"auto.create.topics.enable": "false", "socket.frame.timeout.ms": "2000", "max.connections": "500"}
    )


@pytest.fixture
def witness(broker: MillraceProcess) -> Iterator[RawConnection]:
    """Another client, whose connection must survive whatever the test does, as must the process."""
    pid = broker.pid
    before = broker.resident_bytes()
    with RawConnection((broker.host, broker.port)) as connection:
        connection.call(METADATA, 1, {"topics": []})
        yield connection
        assert broker.is_running()
        assert broker.pid == pid
        assert connection.call(METADATA, 1, {"topics": []})["brokers"]
        assert broker.resident_bytes() < before + 100 * MEGABYTE
    output = broker.output()
    assert "Traceback" not in output, output[-5_000:]


def open_raw(broker: MillraceProcess) -> RawConnection:
    return RawConnection((broker.host, broker.port), timeout_s=10)


@pytest.mark.parametrize("size", [0x7FFFFFFF, -1, 0, -(2**31), 104_857_601, 3])
def test_impossible_frame_sizes_end_the_connection(
    size: int, broker: MillraceProcess, witness: RawConnection
) -> None:
    with open_raw(broker) as connection:
        connection.send_bytes(struct.pack(">i", size) + bytes(100))
        assert connection.is_closed_by_peer()


def test_many_large_claims_take_no_memory(broker: MillraceProcess, witness: RawConnection) -> None:
    # 100 clients announce 100 MB each and send almost nothing.
    connections = [open_raw(broker) for _ in range(100)]
    before = broker.resident_bytes()
    for connection in connections:
        header = struct.pack(">hhih3s", METADATA, 1, 1, 3, b"big")
        connection.send_bytes(struct.pack(">i", 100_000_000) + header + bytes(1_000))
    throughout(lambda: broker.resident_bytes() < before + 20 * MEGABYTE, 0.5)
    assert witness.call(METADATA, 1, {"topics": []})["brokers"]
    # And each is cut off when its frame does not come to an end (S20).
    assert all(connection.is_closed_by_peer(10) for connection in connections)
    for connection in connections:
        connection.socket.close()


BOMBS = {
    "counts": b"\x7f\xff\xff\xff" * 8,
    "compact counts": b"\xff\xff\xff\xff\x07" * 8,
    "endless varint": b"\xff" * 40,
    "short counts": b"\x7f\xff" * 16,
    "zeros then a count": bytes(12) + b"\x7f\xff\xff\xff" * 4,
    "nulls": b"\xff\xff\xff\xff" * 10,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_counts_larger_than_the_frame_take_no_memory(
    bomb: str, broker: MillraceProcess, witness: RawConnection
) -> None:
    before = broker.resident_bytes()
    for api_key, (low, high) in served(witness).items():
        for version in range(low, high + 1):
            header = struct.pack(">hhih3s", api_key, version, 1, 3, b"boo")
            if is_flexible(api_key, version):
                header += b"\x00"
            poke(broker, header + BOMBS[bomb])
    assert broker.resident_bytes() < before + 30 * MEGABYTE


def served(connection: RawConnection) -> dict[int, tuple[int, int]]:
    answer = connection.call(API_VERSIONS, 0)
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in answer["api_keys"]}


def is_flexible(api_key: int, version: int) -> bool:
    try:
        return bool(load_request_schema(api_key, version).__flexible__)
    except Exception:  # noqa: BLE001 - kio does not know the oldest Produce versions, which are not flexible
        return False


def poke(broker: MillraceProcess, frame: bytes) -> None:
    """Send a frame on a connection of its own; any answer or a close will do."""
    with open_raw(broker) as connection:
        connection.socket.settimeout(0.02)
        try:
            connection.send_frame(frame)
            connection.receive_frame()
        except (Closed, TimeoutError, ConnectionError):
            pass


def test_an_unknown_api_with_a_large_body_is_decided_from_the_header(
    broker: MillraceProcess, witness: RawConnection
) -> None:
    with open_raw(broker) as connection:
        peer = connection.socket.getsockname()[1]
        # 90 MB are announced; the broker does not wait for them.
        connection.send_bytes(struct.pack(">ihhih", 90_000_000, 999, 0, 1, -1) + bytes(100))
        assert connection.is_closed_by_peer()
    (reason,) = [line for line in broker.output().splitlines() if f"closed peer=127.0.0.1:{peer} " in line]
    assert "api key 999 version 0 is not served here" in reason, "not the time for a whole frame"


@pytest.mark.parametrize(
    "hello, hint",
    [
        (bytes.fromhex("16030100c8010000c40303") + bytes(200), "TLS"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "HTTP"),
    ],
)
def test_other_protocols_are_closed_with_a_hint_in_the_log(
    hello: bytes, hint: str, broker: MillraceProcess, witness: RawConnection
) -> None:
    seen = broker.output().count(hint)
    with open_raw(broker) as connection:
        connection.send_bytes(hello)
        assert connection.is_closed_by_peer()
    eventually(lambda: broker.output().count(hint) > seen)


def test_a_slow_sender_is_cut_off(broker: MillraceProcess, witness: RawConnection) -> None:
    frame = encode_request(METADATA, 1, {"topics": []}, 1)
    data = struct.pack(">i", len(frame)) + frame
    with open_raw(broker) as connection:
        started = time.monotonic()
        position = 0
        # One byte now and then keeps the socket alive, but never completes the frame in time.
        while position < len(data) - 1 and time.monotonic() - started < 60:
            try:
                connection.send_bytes(data[position : position + 1])
            except OSError:
                break
            position += 1
            time.sleep(SLOW_BYTE_S)
        assert position < len(data) - 1, "it was not cut off while its bytes came"
        assert time.monotonic() - started > 1.5


def test_a_receiver_that_never_reads_is_bounded_and_cut_off(
    broker: MillraceProcess, witness: RawConnection
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("unread"))
    for _ in range(8):
        assert produce(witness, topic, batch([bytes(900_000)]))["error_code"] == "none"
    request = fetch_request({topic_id(witness, topic): [fetch_partition(0, 0)]})
    request["topics"][0]["partitions"][0]["partition_max_bytes"] = 8 * MEGABYTE
    before = broker.resident_bytes()
    connection = open_raw(broker)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.socket.settimeout(1)
    peak = before
    try:
        # 7 MB for each of 300 requests: 2 GB, if the broker did not stop reading.
        for _ in range(300):
            connection.send(FETCH, FETCH_VERSION, request)
            peak = max(peak, broker.resident_bytes())
    except OSError:
        pass
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        peak = max(peak, broker.resident_bytes())
        time.sleep(0.1)
    assert peak < before + 60 * MEGABYTE, (before, peak)
    # Nothing was taken for longer than the deadline: the connection is gone, without a word from us.
    eventually(lambda: "responses were not read" in broker.output(), deadline_s=60)
    connection.socket.close()


def test_a_slow_reader_that_takes_its_answers_is_not_cut_off(
    broker: MillraceProcess, witness: RawConnection
) -> None:
    # The second request waits in the broker's buffer, whole, while the first answer crawls out: not the
    # client's fault, however long it takes.
    topic = create_topic(broker.bootstrap, unique_name("crawl"))
    for _ in range(8):
        assert produce(witness, topic, batch([bytes(900_000)]))["error_code"] == "none"
    request = fetch_request({topic_id(witness, topic): [fetch_partition(0, 0)]})
    request["topics"][0]["partitions"][0]["partition_max_bytes"] = 8 * MEGABYTE
    with open_raw(broker) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        for _ in range(2):
            connection.send(FETCH, FETCH_VERSION, request)
        received = 0
        started = time.monotonic()
        while received < 2 * 8 * 900_000:
            chunk = connection.socket.recv(65_536)
            assert chunk, f"cut off after {received} bytes"
            received += len(chunk)
            # About 3 s for each answer, which is more than the frame deadline.
            time.sleep(max(0.0, received / 2_400_000 - (time.monotonic() - started)))
        assert time.monotonic() - started > 5


def test_a_decompression_bomb_is_refused(broker: MillraceProcess, witness: RawConnection) -> None:
    # A megabyte of gzip that inflates to a gigabyte, where the broker has to look inside.
    configs = {"compression.type": "lz4", "max.message.bytes": "2000000"}
    topic = create_topic(broker.bootstrap, unique_name("bomb"), configs=configs)
    size = 1 << 30
    zeros = bytes(1 << 24)
    head = record(0, None, b"")
    blob = gzip.compress(zeros, 9)
    # Concatenated gzip members inflate one after the other.
    bomb = gzip.compress(head[:1]) + blob * (size // len(zeros))
    data = batch([b"x"], attributes=1, records=bomb)
    before = broker.resident_bytes()
    outcome = produce(witness, topic, data)
    assert outcome["error_code"] in ("corrupt_message", "invalid_record", "message_too_large"), outcome
    # At most what max.decompressed.message.bytes allows, and a little around it.
    assert broker.resident_bytes() < before + 130 * MEGABYTE
    assert end_offset(witness, topic) == 0
    assert produce(witness, topic, batch([b"fine"]))["error_code"] == "none"


def valid_frames(topic: str, connection: RawConnection) -> list[bytes]:
    """Honest requests of many kinds, as material to damage."""
    ident = topic_id(connection, topic)
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    fetch = fetch_request({ident: [fetch_partition(0, 0)]}, session_epoch=0)
    producer_id, epoch = init_producer_id(connection)
    records = batch([b"a", b"b"], producer=(producer_id, epoch, 0))
    topics = [{"name": topic, "partitions": [partition]}]
    wanted = [
        (PRODUCE, 12, produce_request({(topic, 0): records})),
        (FETCH, FETCH_VERSION, fetch),
        (LIST_OFFSETS, 8, {"replica_id": -1, "isolation_level": 0, "topics": topics}),
        (METADATA, 7, {"topics": [{"name": topic}], "allow_auto_topic_creation": False}),
        (API_VERSIONS, 4, {"client_software_name": "fuzz", "client_software_version": "1"}),
        (
            CREATE_TOPICS,
            7,
            {
                "topics": [
                    {
                        "name": "fuzzed",
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [{"name": "retention.ms", "value": "1"}],
                    }
                ],
                "timeout": 1_000,
                "validate_only": True,
            },
        ),
        (DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": []}], "timeout": 1_000}),
        (
            INIT_PRODUCER_ID,
            4,
            {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1},
        ),
        (
            DESCRIBE_CONFIGS,
            4,
            {
                "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}],
                "include_synonyms": True,
                "include_documentation": True,
            },
        ),
        (
            INCREMENTAL_ALTER_CONFIGS,
            1,
            {
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": topic,
                        "configs": [{"name": "flush.ms", "config_operation": 0, "value": "9"}],
                    }
                ],
                "validate_only": True,
            },
        ),
    ]
    return [encode_request(key, version, fields, 1) for key, version, fields in wanted]


def test_damaged_requests_of_every_kind_leave_the_broker_serving(
    broker: MillraceProcess, witness: RawConnection
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("fuzz"))
    source = random.Random(20_261_115)
    frames = valid_frames(topic, witness)
    for _ in range(1_500):
        data = bytearray(source.choice(frames))
        for _ in range(source.randrange(1, 4)):
            # The first four bytes say which API it is; those are the next test's business.
            position = source.randrange(4, len(data))
            match source.randrange(4):
                case 0:
                    data[position] = source.randrange(256)
                case 1:
                    del data[position:]
                case 2:
                    data[position:position] = source.randbytes(source.randrange(1, 9))
                case _:
                    data[position : position + 4] = source.choice(
                        (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", bytes(4))
                    )
            if len(data) < 12:
                break
        poke(broker, bytes(data))
    assert produce(witness, topic, batch([b"still here"]))["error_code"] == "none"


def test_random_bodies_for_every_api_and_version_leave_the_broker_serving(
    broker: MillraceProcess, witness: RawConnection
) -> None:
    source = random.Random(22)
    known = served(witness)
    for api_key in range(-1, 100):
        low, high = known.get(api_key, (0, 2))
        for version in range(max(0, low - 1), high + 2):
            for _ in range(2):
                body = source.randbytes(source.choice((0, 1, 7, 40, 300)))
                header = struct.pack(">hhih3s", api_key, version, 1, 3, b"rnd")
                poke(broker, header + source.choice((b"", b"\x00")) + body)
    topic = create_topic(broker.bootstrap, unique_name("after-fuzz"))
    assert produce(witness, topic, batch([b"still here"]))["error_code"] == "none"
    assert end_offset(witness, topic) == 1
