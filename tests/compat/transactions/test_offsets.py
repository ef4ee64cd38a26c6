"""Offsets that are committed inside a transaction: with its records, or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.compat.transactions.conftest import ProducerMaker
from tests.compat.transactions.offsets import committed_offset, fetch_offset
from tests.compat.transactions.producers import CLIENTS, Refused
from tests.compat.transactions.reading import Partition, read_all, wait_until_stable
from tests.harness.process import eventually
from tests.harness.topics import create_topic, unique_name

STALE = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "CommitFailedException",
    "STALE_MEMBER_EPOCH",
}


class Copy:
    """An input, an output and a group."""

    def __init__(self, bootstrap: str) -> None:
        self.input: Partition = (create_topic(bootstrap, unique_name("input")), 0)
        self.output: Partition = (create_topic(bootstrap, unique_name("output")), 0)
        self.group = unique_name("copy")


@pytest.fixture
def copy(make_producer: ProducerMaker) -> Copy:
    return Copy(make_producer.bootstrap)


@pytest.mark.parametrize("client", CLIENTS)
def test_offsets_become_visible_with_the_records(
    make_producer: ProducerMaker, copy: Copy, client: str
) -> None:
    producer, bootstrap = make_producer(client), make_producer.bootstrap
    for offset, end, expected in ((3, "commit", 3), (5, "abort", 3), (8, "commit", 8)):
        before = committed_offset(bootstrap, copy.group, copy.input)
        producer.begin()
        producer.send((*copy.output, f"up to {offset}"))
        producer.offsets(copy.group, (*copy.input, offset))
        producer.flush()
        pending = fetch_offset(bootstrap, copy.group, copy.input, require_stable=True)
        assert pending["error_code"] == "unstable_offset_commit"
        # Who does not ask for stable offsets gets the last one that counts.
        old = fetch_offset(bootstrap, copy.group, copy.input, require_stable=False)
        assert (old["error_code"], old["committed_offset"]) == ("none", before)
        producer.call(end)
        assert committed_offset(bootstrap, copy.group, copy.input) == expected
    wait_until_stable(bootstrap, [copy.output])
    assert read_all(bootstrap, [copy.output]) == {copy.output: ["up to 3", "up to 8"]}


def test_a_consumer_waits_for_a_pending_offset(make_producer: ProducerMaker, copy: Copy) -> None:
    """Whoever takes a partition over must not start from before a transaction that may still commit."""
    producer, bootstrap = make_producer("librdkafka"), make_producer.bootstrap
    producer.begin()
    producer.offsets(copy.group, (*copy.input, 4))
    consumer: Any = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": copy.group, "isolation.level": "read_committed"}
    )
    with pytest.raises(KafkaException):
        consumer.committed([TopicPartition(*copy.input)], timeout=1)
    producer.commit()
    (found,) = consumer.committed([TopicPartition(*copy.input)], timeout=60)
    assert found.offset == 4
    consumer.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_pending_offset_is_dropped_when_its_transaction_runs_out_of_time(
    make_producer: ProducerMaker, copy: Copy, client: str
) -> None:
    producer, bootstrap = make_producer(client, timeout_ms=1_000), make_producer.bootstrap
    producer.begin()
    producer.offsets(copy.group, (*copy.input, 4))
    pending = fetch_offset(bootstrap, copy.group, copy.input, require_stable=True)
    assert pending["error_code"] == "unstable_offset_commit"
    started = time.monotonic()
    assert committed_offset(bootstrap, copy.group, copy.input) == -1
    assert time.monotonic() - started < 30.0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_a_member_that_lost_its_place_cannot_commit(
    make_producer: ProducerMaker, copy: Copy, client: str, protocol: str
) -> None:
    """Its epoch as a producer is fresh; only the group knows that its partitions are another's."""
    bootstrap = make_producer.bootstrap
    make_producer(client).write((*copy.input, "in"))
    config: dict[str, Any] = {"group.protocol": protocol}
    if protocol == "classic":
        config |= {"session.timeout.ms": 6_000}
    old, new = make_producer(client), make_producer(client)
    join = {"group": copy.group, "topic": copy.input[0], "config": config}
    assert old.call("join", consumer="old", **join)["values"] == ["in"]
    old.call("leave", consumer="old")
    assert new.call("join", consumer="new", **join)["values"] == ["in"]
    for producer in (old, new):
        producer.begin()
        producer.send((*copy.output, "out"))
    with pytest.raises(Refused) as refused:
        old.call("offsets", consumer="old", offsets=[(*copy.input, 1)])
    assert refused.value.error in STALE
    old.abort()
    new.call("offsets", consumer="new", offsets=[(*copy.input, 1)])
    new.commit()
    new.call("leave", consumer="new")
    wait_until_stable(bootstrap, [copy.output])
    assert read_all(bootstrap, [copy.output]) == {copy.output: ["out"]}
    eventually(lambda: committed_offset(bootstrap, copy.group, copy.input) == 1)
