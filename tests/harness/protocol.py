"""Requests that many raw tests need, in the newest version that keeps them short."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from tests.harness.raw import FETCH, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, PRODUCE, Plain, RawConnection

FETCH_VERSION: Final = 17
PRODUCE_VERSION: Final = 12


def topic_metadata(connection: RawConnection, topic: str, *, create: bool = False) -> Plain:
    answer = connection.call(
        METADATA,
        12,
        {
            "topics": [{"topic_id": None, "name": topic}],
            "allow_auto_topic_creation": create,
            "include_topic_authorized_operations": False,
        },
    )
    found: Plain = answer["topics"][0]
    return found


def topic_id(connection: RawConnection, topic: str) -> uuid.UUID:
    metadata = topic_metadata(connection, topic)
    assert metadata["error_code"] == "none", metadata
    found = metadata["topic_id"]
    assert isinstance(found, uuid.UUID)
    return found


def leader_epoch(connection: RawConnection, topic: str, partition: int = 0) -> int:
    for entry in topic_metadata(connection, topic)["partitions"]:
        if entry["partition_index"] == partition:
            return int(entry["leader_epoch"])
    raise AssertionError(f"{topic} has no partition {partition}")


def produce_request(records: dict[tuple[str, int], bytes | None], acks: int = -1) -> Plain:
    topics: dict[str, list[Plain]] = {}
    for (topic, partition), data in records.items():
        topics.setdefault(topic, []).append({"index": partition, "records": data})
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": name, "partition_data": entries} for name, entries in topics.items()],
    }


def produce(
    connection: RawConnection, topic: str, records: bytes | None, partition: int = 0, acks: int = -1
) -> Plain:
    """Produce to one partition; its part of the answer."""
    answer = connection.call(PRODUCE, PRODUCE_VERSION, produce_request({(topic, partition): records}, acks))
    (entry,) = answer["responses"]
    (found,) = entry["partition_responses"]
    assert isinstance(found, dict)
    return found


def fetch_partition(partition: int, offset: int, **fields: Any) -> Plain:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20} | fields


def fetch_request(topics: dict[uuid.UUID, list[Plain]], **fields: Any) -> Plain:
    """A Fetch without a session, unless `fields` say otherwise."""
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": ident, "partitions": entries} for ident, entries in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    } | fields


def fetch_one(connection: RawConnection, topic: str, partition: int, offset: int, **fields: Any) -> Plain:
    """Fetch from one partition; its part of the answer."""
    request = fetch_request({topic_id(connection, topic): [fetch_partition(partition, offset, **fields)]})
    answer = connection.call(FETCH, FETCH_VERSION, request)
    assert answer["error_code"] == "none", answer
    found = answer["responses"][0]["partitions"][0]
    assert isinstance(found, dict)
    return found


def fetch_records(connection: RawConnection, topic: str, partition: int, offset: int) -> bytes:
    """The raw batches of one partition from `offset` on (one fetch)."""
    found = fetch_one(connection, topic, partition, offset)
    assert found["error_code"] == "none", found
    records = found["records"]
    return b"" if records is None else bytes(records)


def list_offset(connection: RawConnection, topic: str, timestamp: int, partition: int = 0) -> Plain:
    request = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
                ],
            }
        ],
    }
    found = connection.call(LIST_OFFSETS, 8, request)["topics"][0]["partitions"][0]
    assert isinstance(found, dict)
    return found


def end_offset(connection: RawConnection, topic: str, partition: int = 0) -> int:
    found = list_offset(connection, topic, -1, partition)
    assert found["error_code"] == "none", found
    return int(found["offset"])


def init_producer_id(connection: RawConnection) -> tuple[int, int]:
    request = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = connection.call(INIT_PRODUCER_ID, 4, request)
    for _ in range(100):
        # Kafka needs a moment for the first block of ids.
        if answer["error_code"] != "coordinator_load_in_progress":
            break
        time.sleep(0.05)
        answer = connection.call(INIT_PRODUCER_ID, 4, request)
    assert answer["error_code"] == "none", answer
    return int(answer["producer_id"]), int(answer["producer_epoch"])
