"""What a reader sees of transactions, with either isolation, and where the brokers let it read up to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.harness.raw import LIST_OFFSETS, RawConnection

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"
Partition = tuple[str, int]


class Reader:
    """Reads given partitions from their beginning, without a group."""

    def __init__(self, bootstrap: str, partitions: Iterable[Partition], isolation: str = COMMITTED) -> None:
        self.values: dict[Partition, list[str]] = {where: [] for where in partitions}
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "never-joined",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._next = dict.fromkeys(self.values, 0)
        self._consumer.assign([TopicPartition(*where, 0) for where in self.values])

    def poll(self, timeout_s: float = 0.2) -> set[Partition]:
        """Take what has come; the partitions whose end was reached."""
        ended = set()
        for message in self._consumer.consume(500, timeout=timeout_s):
            where = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                assert message.offset() >= self._next[where], "went back"
                self._next[where] = message.offset() + 1
                self.values[where].append(message.value().decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(where)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise AssertionError(error)
        return ended

    def wait_for(self, where: Partition, value: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while value not in self.values[where]:
            assert time.monotonic() < deadline, f"{value} not in {where} within {deadline_s} s: {self.values}"
            self.poll(0.05)

    def close(self) -> None:
        self._consumer.close()


def read_all(
    bootstrap: str, partitions: Iterable[Partition], isolation: str = COMMITTED, deadline_s: float = 60.0
) -> dict[Partition, list[str]]:
    """Everything up to the ends that this isolation shows at this moment."""
    reader = Reader(bootstrap, partitions, isolation)
    deadline = time.monotonic() + deadline_s
    missing = set(reader.values)
    while missing:
        assert time.monotonic() < deadline, f"no end of {missing}"
        missing -= reader.poll()
    reader.close()
    return reader.values


def end_offsets(bootstrap: str, partitions: Iterable[Partition], isolation: str) -> dict[Partition, int]:
    """The last stable offsets, or the high watermarks."""
    host, _, port = bootstrap.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        return {where: _end_offset(connection, where, isolation) for where in partitions}


def _end_offset(connection: RawConnection, where: Partition, isolation: str) -> int:
    wanted = {"partition_index": where[1], "current_leader_epoch": -1, "timestamp": -1}
    request = {
        "replica_id": -1,
        "isolation_level": 1 if isolation == COMMITTED else 0,
        "topics": [{"name": where[0], "partitions": [wanted]}],
    }
    found = connection.call(LIST_OFFSETS, 8, request)["topics"][0]["partitions"][0]
    assert found["error_code"] == "none", found
    return int(found["offset"])


def wait_until_stable(bootstrap: str, partitions: Iterable[Partition], deadline_s: float = 60.0) -> float:
    """Wait until no transaction is open in these partitions; how long it took in seconds."""
    started, wanted = time.monotonic(), list(partitions)
    while end_offsets(bootstrap, wanted, COMMITTED) != end_offsets(bootstrap, wanted, UNCOMMITTED):
        assert time.monotonic() < started + deadline_s, f"an open transaction after {deadline_s} s"
        time.sleep(0.02)
    return time.monotonic() - started


def flat(values: Mapping[Partition, list[str]]) -> list[str]:
    return [value for each in values.values() for value in each]
