"""Queues: what the tools tell, read; frames whose numbers are replaced; batches with a time of delivery."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from benchmarks import share_frames as frames
from benchmarks.delayed_batches import DELIVER_AT, DelayedBatch
from benchmarks.generators.queue_delayed import due_times
from benchmarks.processes import GeneratorFailed
from benchmarks.profiles import QUICK, SMOKE, STANDARD
from benchmarks.workloads import queue_workloads, solo_workloads
from benchmarks.workloads.queues import JAVA_SOURCE, share_load_rate, steady_share_rate
from millrace.wire import schema
from millrace.wire.messages.share_acknowledge import ShareAcknowledgeResponse
from millrace.wire.messages.share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
)
from millrace.wire.records import check_batch, read_records
from tools.kafka_distribution import KafkaDistribution

TOPIC = uuid.UUID(int=1 << 100)


def interval(second: int, records: int) -> str:
    at = f"2026-11-18 16:57:{second:02}:500"
    return f"2026-11-18 16:57:00:000, {at}, 1.0, 2.0, 3.0, {records}, 500 for share consumer 1"


def test_the_time_to_join_is_not_part_of_the_steady_rate() -> None:
    output = "\n".join(
        ["start.time, end.time, ...", interval(5, 10), interval(6, 250), interval(7, 500), interval(8, 1_000)]
    )
    assert steady_share_rate(output) == (1_000 - 250) / 2


@pytest.mark.parametrize("output", ["", interval(5, 1_000)])
def test_a_rate_that_cannot_be_told_is_a_failure(output: str) -> None:
    with pytest.raises(GeneratorFailed):
        steady_share_rate(output)


def test_the_last_line_of_the_java_load_counts() -> None:
    assert share_load_rate('[main] WARN x\n{"records": 300, "elapsed_s": 1.5}\n') == 200
    with pytest.raises(GeneratorFailed):
        share_load_rate("nothing")


def test_a_fetch_of_an_open_session_differs_in_its_epoch_only() -> None:
    limits = {"max_wait_ms": 500, "max_records": 1, "mode": frames.RECORD_LIMIT}
    frame = frames.FetchFrame("group", "member", limits)
    assert bytes(frame.at(5)) == frames.share_fetch("group", "member", 5, (), limits)
    assert bytes(frame.at(6)) == frames.share_fetch("group", "member", 6, (), limits)


def test_an_acknowledgement_differs_in_epoch_and_offsets() -> None:
    frame = frames.AcknowledgeFrame("group", "member", TOPIC, 0)
    wanted = frames.share_acknowledge("group", "member", 9, TOPIC, 0, 100, 2**40)
    assert bytes(frame.at(9, 100, 2**40)) == wanted


def share_fetch_answer(error: int, *ranges: tuple[int, int], partition_error: int = 0) -> bytes:
    acquired = [AcquiredRecords(first_offset=a, last_offset=b, delivery_count=1) for a, b in ranges]
    partition = PartitionData(records=b"x" * 80, acquired_records=acquired, error_code=partition_error)
    response = ShareFetchResponse(
        error_code=error,
        responses=[ShareFetchableTopicResponse(topic_id=TOPIC.bytes, partitions=[partition])],
    )
    head = frames.CORRELATION_ID.to_bytes(4, "big") + b"\x00"
    return head + schema.response_encoder(*frames.SHARE_FETCH)(response)


def test_what_was_acquired_is_found_in_answers_of_every_shape() -> None:
    assert frames.acquired(share_fetch_answer(0, (7, 9))) == (7, 9)
    assert frames.acquired(share_fetch_answer(0, (7, 9), (10, 30))) == (7, 30)
    assert frames.acquired(share_fetch_answer(0)) is None


def test_refusals_are_seen() -> None:
    with pytest.raises(frames.Refused, match="invalid_share_session_epoch"):
        frames.acquired(share_fetch_answer(123))
    with pytest.raises(frames.Refused, match="unknown_topic_or_partition"):
        frames.acquired(share_fetch_answer(0, partition_error=3))
    head = frames.CORRELATION_ID.to_bytes(4, "big") + b"\x00"
    refused = ShareAcknowledgeResponse(error_code=122)
    with pytest.raises(frames.Refused):
        frames.check_acknowledged(head + schema.response_encoder(*frames.SHARE_ACKNOWLEDGE)(refused))


def test_a_delayed_batch_is_valid_and_carries_its_time() -> None:
    batch = DelayedBatch(b"value", 3, 1_700_000_000_000).due_at(1_800_000_000_123)
    check_batch(batch)
    found = read_records(batch)
    assert len(found) == 3
    assert all(list(record.headers) == [(DELIVER_AT.decode(), b"1800000000123")] for record in found)


def test_due_times_are_spread_evenly() -> None:
    arguments = {"records": 100, "due_from_ms": 1_000, "due_s": 10}
    assert list(due_times(arguments, 25)) == [1_000, 3_500, 6_000, 8_500]
    assert list(due_times({**arguments, "records": 1}, 25)) == [1_000]


def test_every_workload_of_queues_has_its_amounts_for_every_profile() -> None:
    assert JAVA_SOURCE.exists()
    shared, solo = queue_workloads(KafkaDistribution(Path(), "java")), solo_workloads()
    for profile in (STANDARD, QUICK, SMOKE):
        keys = [metric.key for each in shared for metric in each.metrics(profile)]
        keys += [metric.key for each in solo for metric in each.metrics(profile)]
        assert len(set(keys)) == len(keys)
