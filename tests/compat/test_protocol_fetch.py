"""Fetch on the wire: sessions (KIP-227), epochs (KIP-320), limits, waiting; as Apache Kafka answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.batches import batch, headers_of
from tests.harness.process import BrokerProcess
from tests.harness.protocol import (
    FETCH_VERSION,
    end_offset,
    fetch_one,
    fetch_partition,
    fetch_request,
    leader_epoch,
    list_offset,
    produce,
    topic_id,
)
from tests.harness.raw import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, Plain, RawConnection
from tests.harness.topics import create_topic, unique_name


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[RawConnection]:
    with RawConnection((broker.host, broker.port)) as opened:
        yield opened


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return create_topic(broker.bootstrap, unique_name("wire"), partitions=2)


class Session:
    """One fetch session; remembers its id and epoch as a client does."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self.id = 0
        self.epoch = 0

    def fetch(self, topics: dict[uuid.UUID, list[Plain]] | None = None, **fields: Any) -> Plain:
        request = fetch_request(topics or {}, session_id=self.id, session_epoch=self.epoch, **fields)
        answer = self._connection.call(FETCH, FETCH_VERSION, request)
        if answer["error_code"] == "none":
            self.id = answer["session_id"]
            self.epoch += 1
        return answer


def seen(answer: Plain) -> dict[int, int]:
    """The partitions in an answer, with the number of their records' bytes."""
    assert answer["error_code"] == "none", answer
    return {
        partition["partition_index"]: len(partition["records"] or b"")
        for entry in answer["responses"]
        for partition in entry["partitions"]
    }


def test_a_session_answers_only_what_is_new(connection: RawConnection, topic: str) -> None:
    data = batch([b"x"])
    produce(connection, topic, data, 0)
    ident = topic_id(connection, topic)
    session = Session(connection)
    full = session.fetch({ident: [fetch_partition(0, 0), fetch_partition(1, 0)]})
    assert seen(full) == {0: len(data), 1: 0}
    assert session.id != 0

    # The client moves on in partition 0; from now on only changes are named, on both sides.
    assert seen(session.fetch({ident: [fetch_partition(0, 1)]})) == {}
    assert seen(session.fetch()) == {}
    produce(connection, topic, data, 1)
    assert seen(session.fetch()) == {1: len(data)}
    # Not moved on, so it is there again.
    assert seen(session.fetch()) == {1: len(data)}
    assert seen(session.fetch({ident: [fetch_partition(1, 1)]})) == {}


def test_forgotten_partitions_leave_the_session(connection: RawConnection, topic: str) -> None:
    data = batch([b"x"])
    ident = topic_id(connection, topic)
    session = Session(connection)
    session.fetch({ident: [fetch_partition(0, 0), fetch_partition(1, 0)]})
    forgotten = [{"topic_id": ident, "partitions": [1]}]
    assert seen(session.fetch(forgotten_topics_data=forgotten)) == {}
    produce(connection, topic, data, 0)
    produce(connection, topic, data, 1)
    assert seen(session.fetch()) == {0: len(data)}
    # And can come back.
    assert seen(session.fetch({ident: [fetch_partition(1, 0)]})) == {0: len(data), 1: len(data)}


def test_session_mistakes_have_kafkas_errors(connection: RawConnection, topic: str) -> None:
    ident = topic_id(connection, topic)
    session = Session(connection)
    session.fetch({ident: [fetch_partition(0, 0)]})

    def error(session_id: int, epoch: int) -> tuple[str, int]:
        request = fetch_request({}, session_id=session_id, session_epoch=epoch)
        answer = connection.call(FETCH, FETCH_VERSION, request)
        return answer["error_code"], answer["session_id"]

    assert error(session.id, session.epoch + 7) == ("invalid_fetch_session_epoch", 0)
    assert error(session.id ^ 0x5555, 1) == ("fetch_session_id_not_found", 0)
    # A wrong epoch does not end the session.
    assert session.fetch()["error_code"] == "none"
    assert error(session.id, -1) == ("none", 0)
    assert error(session.id, session.epoch) == ("fetch_session_id_not_found", 0)


def test_a_new_full_fetch_replaces_the_session(connection: RawConnection, topic: str) -> None:
    ident = topic_id(connection, topic)
    session = Session(connection)
    session.fetch({ident: [fetch_partition(0, 0)]})
    old_id = session.id
    session.epoch = 0
    session.fetch({ident: [fetch_partition(1, 0)]})
    assert session.id not in (0, old_id)
    request = fetch_request({}, session_id=old_id, session_epoch=1)
    answer = connection.call(FETCH, FETCH_VERSION, request)
    assert answer["error_code"] == "fetch_session_id_not_found"


def test_without_a_session_every_partition_is_named(connection: RawConnection, topic: str) -> None:
    request = fetch_request({topic_id(connection, topic): [fetch_partition(0, 0), fetch_partition(1, 0)]})
    answer = connection.call(FETCH, FETCH_VERSION, request)
    assert seen(answer) == {0: 0, 1: 0}
    assert answer["session_id"] == 0


def test_epochs_of_the_future_are_unknown(connection: RawConnection, topic: str) -> None:
    epoch = leader_epoch(connection, topic)
    assert fetch_one(connection, topic, 0, 0, current_leader_epoch=epoch)["error_code"] == "none"
    future = fetch_one(connection, topic, 0, 0, current_leader_epoch=epoch + 1)
    assert future["error_code"] == "unknown_leader_epoch"
    partition = {"partition_index": 0, "current_leader_epoch": epoch + 1, "timestamp": -1}
    request = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [partition]}]}
    answer = connection.call(LIST_OFFSETS, 8, request)["topics"][0]["partitions"][0]
    assert answer["error_code"] == "unknown_leader_epoch"


def test_a_diverging_position_is_told_where_to_go(connection: RawConnection, topic: str) -> None:
    produce(connection, topic, batch([b"x"] * 5))
    epoch = leader_epoch(connection, topic)
    answer = fetch_one(connection, topic, 0, 1_000, last_fetched_epoch=epoch)
    assert answer["error_code"] == "none"
    assert answer["diverging_epoch"] == {"epoch": epoch, "end_offset": 5}
    assert not answer["records"]
    in_range = fetch_one(connection, topic, 0, 5, last_fetched_epoch=epoch)
    assert (in_range["error_code"], in_range["diverging_epoch"]["epoch"]) == ("none", -1)


def test_the_end_of_an_epoch_is_found(connection: RawConnection, topic: str) -> None:
    produce(connection, topic, batch([b"x"] * 5))
    epoch = leader_epoch(connection, topic)

    def ask(partition: int, wanted: int, current: int = -1) -> tuple[str, int, int]:
        entry = {"partition": partition, "current_leader_epoch": current, "leader_epoch": wanted}
        request = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [entry]}]}
        answer = connection.call(OFFSET_FOR_LEADER_EPOCH, 4, request)["topics"][0]["partitions"][0]
        return answer["error_code"], answer["leader_epoch"], answer["end_offset"]

    assert ask(0, epoch) == ("none", epoch, 5)
    assert ask(0, epoch + 5) == ("none", -1, -1)
    assert ask(7, epoch) == ("unknown_topic_or_partition", -1, -1)
    assert ask(1, epoch, current=epoch + 9) == ("unknown_leader_epoch", -1, -1)


def test_offsets_out_of_range_and_unknown_targets(connection: RawConnection, topic: str) -> None:
    produce(connection, topic, batch([b"x"] * 5))
    assert fetch_one(connection, topic, 0, 5)["error_code"] == "none"
    for offset in (6, -1):
        answer = fetch_one(connection, topic, 0, offset)
        assert answer["error_code"] == "offset_out_of_range"
        assert answer["high_watermark"] == -1
    assert fetch_one(connection, topic, 9, 0)["error_code"] == "unknown_topic_or_partition"
    request = fetch_request({uuid.uuid4(): [fetch_partition(0, 0)]})
    answer = connection.call(FETCH, FETCH_VERSION, request)
    assert answer["error_code"] == "none"
    assert answer["responses"][0]["partitions"][0]["error_code"] == "unknown_topic_id"


def test_a_fetch_starts_with_the_batch_that_holds_the_offset(connection: RawConnection, topic: str) -> None:
    for _ in range(3):
        produce(connection, topic, batch([b"x"] * 10))
    answer = fetch_one(connection, topic, 0, 17)
    assert [header[0] for header in headers_of(answer["records"])] == [10, 20]
    assert (answer["high_watermark"], answer["last_stable_offset"], answer["log_start_offset"]) == (30, 30, 0)


def test_limits_hold_but_the_first_batch_always_comes(connection: RawConnection, topic: str) -> None:
    big = batch([bytes(50_000)])
    for partition in (0, 1):
        for _ in range(3):
            produce(connection, topic, big, partition)
    ident = topic_id(connection, topic)

    def sizes(max_bytes: int, partition_max_bytes: int) -> list[int]:
        partitions = [
            fetch_partition(partition, 0) | {"partition_max_bytes": partition_max_bytes}
            for partition in (0, 1)
        ]
        answer = connection.call(
            FETCH, FETCH_VERSION, fetch_request({ident: partitions}, max_bytes=max_bytes)
        )
        return [len(part["records"] or b"") for part in answer["responses"][0]["partitions"]]

    whole = len(big)
    # The answer's first partition with data gives one batch, however small the limits are.
    assert sizes(1, 1) == [whole, 0]
    assert sizes(1 << 20, 1)[0] == whole
    complete = [size // whole for size in sizes(1 << 20, 1 << 20)]
    assert complete == [3, 3]
    assert sum(size // whole for size in sizes(whole * 2, 1 << 20)) == 2


def test_a_fetch_waits_for_min_bytes_or_its_time(connection: RawConnection, topic: str) -> None:
    ident = topic_id(connection, topic)
    request = fetch_request({ident: [fetch_partition(0, 0)]}, max_wait=400)
    started = time.monotonic()
    assert seen(connection.call(FETCH, FETCH_VERSION, request)) == {0: 0}
    assert 0.35 < time.monotonic() - started < 30


def test_a_waiting_fetch_is_woken_by_a_produce(
    connection: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    ident = topic_id(connection, topic)
    request = fetch_request({ident: [fetch_partition(0, 0)]}, max_wait=20_000)
    correlation_id = connection.send(FETCH, FETCH_VERSION, request)
    data = batch([b"wake up"])
    with RawConnection((broker.host, broker.port)) as other:
        time.sleep(0.2)
        started = time.monotonic()
        produce(other, topic, data)
    assert seen(connection.receive(FETCH, FETCH_VERSION, correlation_id)) == {0: len(data)}
    assert time.monotonic() - started < 15, "it was its time that ended it"


@pytest.mark.parametrize("uses_session", [False, True])
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_consumer_at_the_end_gets_each_record_as_it_comes(
    connection: RawConnection, topic: str, broker: BrokerProcess, uses_session: bool, isolation_level: int
) -> None:
    """It asks for the same again and again, but for the offset."""
    ident = topic_id(connection, topic)
    session_id, session_epoch = 0, -1
    if uses_session:
        first = fetch_request({ident: [fetch_partition(0, 0)]}, session_epoch=0)
        session_id, session_epoch = connection.call(FETCH, FETCH_VERSION, first)["session_id"], 1
    with RawConnection((broker.host, broker.port)) as other:
        for offset in range(12):
            request = fetch_request(
                {ident: [fetch_partition(0, offset)]},
                max_wait=20_000,
                session_id=session_id,
                session_epoch=session_epoch,
                isolation_level=isolation_level,
            )
            correlation_id = connection.send(FETCH, FETCH_VERSION, request)
            if offset % 3 == 0:
                # Now and then it is there first.
                time.sleep(0.1)
            data = batch([b"%d" % offset])
            assert produce(other, topic, data)["base_offset"] == offset
            answer = connection.receive(FETCH, FETCH_VERSION, correlation_id)
            (partition,) = answer["responses"][0]["partitions"]
            assert partition["error_code"] == "none"
            assert [header[0] for header in headers_of(partition["records"])] == [offset]
            assert partition["records"][16:] == data[16:]
            assert (partition["high_watermark"], partition["last_stable_offset"]) == (offset + 1, offset + 1)
            assert not partition["aborted_transactions"]
            session_epoch += 1 if uses_session else 0


def test_answers_keep_the_order_of_requests(connection: RawConnection, topic: str) -> None:
    # The second request could be answered at once, but the first one waits.
    ident = topic_id(connection, topic)
    request = fetch_request({ident: [fetch_partition(0, 0)]}, max_wait=300)
    first = connection.send(FETCH, FETCH_VERSION, request)
    rest = [connection.send(METADATA, 1, {"topics": []}) for _ in range(5)]
    assert seen(connection.receive(FETCH, FETCH_VERSION, first)) == {0: 0}
    for correlation_id in rest:
        connection.receive(METADATA, 1, correlation_id)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads_the_same(version: int, connection: RawConnection, topic: str) -> None:
    data = batch([b"x", b"y"])
    produce(connection, topic, data)
    request = fetch_request({topic_id(connection, topic): [fetch_partition(0, 0)]})
    if version < 13:
        request["topics"] = [{"topic": topic, "partitions": request["topics"][0]["partitions"]}]
    if version < 15:
        request["replica_id"] = -1
    for name, first in (
        ("session_id", 7),
        ("session_epoch", 7),
        ("forgotten_topics_data", 7),
        ("rack_id", 11),
    ):
        if version < first:
            del request[name]
    answer = connection.call(FETCH, version, request)
    (partition,) = answer["responses"][0]["partitions"]
    assert partition["error_code"] == "none"
    assert partition["high_watermark"] == 2
    assert partition["records"][:8] == bytes(8)
    assert partition["records"][16:] == data[16:]


def test_offsets_are_listed_for_every_special_timestamp(connection: RawConnection, topic: str) -> None:
    for moment in (5_000, 9_000, 7_000):
        produce(connection, topic, batch([b"x"], timestamp_ms=moment))

    def ask(timestamp: int) -> tuple[int, int]:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        request = {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": 1_000,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = connection.call(LIST_OFFSETS, 11, request)["topics"][0]["partitions"][0]
        assert answer["error_code"] == "none"
        return answer["offset"], answer["timestamp"]

    assert ask(-1) == (3, -1)
    assert ask(-2) == (0, -1)
    assert ask(-3) == (1, 9_000)
    assert ask(-4) == (0, -1)
    assert ask(-5) == (-1, -1)
    assert ask(0) == (0, 5_000)
    assert ask(5_001) == (1, 9_000)
    assert ask(9_001) == (-1, -1)
    assert list_offset(connection, unique_name("absent"), -1)["error_code"] == "unknown_topic_or_partition"
    assert list_offset(connection, topic, -1, 9)["error_code"] == "unknown_topic_or_partition"


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_lists_offsets(version: int, connection: RawConnection, topic: str) -> None:
    produce(connection, topic, batch([b"x", b"y"]))
    partition = {"partition_index": 0, "timestamp": -1}
    if version >= 4:
        partition["current_leader_epoch"] = -1
    request: Plain = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    if version >= 2:
        request["isolation_level"] = 0
    if version >= 10:
        request["timeout"] = 1_000
    answer = connection.call(LIST_OFFSETS, version, request)["topics"][0]["partitions"][0]
    assert (answer["error_code"], answer["offset"]) == ("none", end_offset(connection, topic))


@pytest.mark.millrace_only
def test_a_client_in_the_name_of_a_replica_is_told_nothing_and_moves_nothing(
    connection: RawConnection, topic: str
) -> None:
    """S13: were its fetch believed, it could pretend that records are replicated."""
    produce(connection, topic, batch([b"x"] * 3))
    entry = fetch_partition(0, 2)
    request = fetch_request(
        {topic_id(connection, topic): [entry]}, replica_state={"replica_id": 1, "replica_epoch": 1}
    )
    answer = connection.call(FETCH, FETCH_VERSION, request)["responses"][0]["partitions"][0]
    assert answer["error_code"] == "not_leader_or_follower"
    assert not answer["records"]
    assert fetch_one(connection, topic, 0, 0)["high_watermark"] == 3
