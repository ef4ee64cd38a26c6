"""End-to-end latency as a reader sees it: a watch follows the ends of partitions and times each new batch.

The delay of a batch runs from the time that the producer gave its newest record to its arrival here. The
watch reads only headers of batches. Topics with LogAppendTime have no producer's time to compare with.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from millrace.client.broker_client import LATEST, READ_COMMITTED, BrokerClient
from millrace.client.errors import ClientError
from millrace.core.ids import TopicId, TopicPartition
from millrace.pipeline.analytics.measurement import Measure, Measurement, class_of
from millrace.wire.batch_header import HEADER_SIZE, read_header

PARTITIONS_MAX: Final = 16
"""Each followed partition costs a thread and a connection; a sample is enough."""
_WAIT_MS: Final = 500
_RETRY_S: Final = 0.5
_FETCH_BYTES: Final = 1 << 20


def batch_delays(records: memoryview, from_offset: int, now_ms: int) -> Iterator[tuple[int, int, int]]:
    """For each whole batch at or behind `from_offset`: the next offset, records in it, and their delay in ms.

    A batch without a producer's time counts as no records, but it still moves the offset.
    """
    position = 0
    while position + HEADER_SIZE <= len(records):
        header = read_header(records, position)
        position += header.size_bytes
        if position > len(records):
            return
        if header.next_offset <= from_offset:
            continue
        is_timed = not header.is_control and not header.is_log_append_time and header.max_timestamp >= 0
        yield header.next_offset, header.records_count if is_timed else 0, now_ms - header.max_timestamp


class ArrivalWatch:
    """Follows the ends of partitions in threads of its own between `with` and its end."""

    def __init__(self, connect: Callable[[], BrokerClient], topics: list[str]) -> None:
        self._connect = connect
        self._topics = topics
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._classes: Counter[tuple[str, int]] = Counter()
        self._largest: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        if not self._topics:
            return self
        with self._connect() as client:
            infos = client.metadata(self._topics)
        places = [
            (TopicPartition(name, number), info.topic_id)
            for name, info in infos.items()
            for number in info.partitions
        ]
        for partition, topic_id in places[:PARTITIONS_MAX]:
            thread = threading.Thread(target=self._follow, args=(partition, topic_id), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def measurements(self, run_ms: int) -> list[Measurement]:
        """What has arrived so far, by class of delay."""
        with self._lock:
            classes, largest = dict(self._classes), dict(self._largest)
        found = [
            Measurement(
                run_ms=run_ms,
                topic=topic,
                measure=Measure.ARRIVALS,
                value=float(count),
                label=str(number),
            )
            for (topic, number), count in sorted(classes.items())
        ]
        return found + [
            Measurement(run_ms=run_ms, topic=topic, measure=Measure.ARRIVAL_MAX, value=float(delay_ms))
            for topic, delay_ms in sorted(largest.items())
        ]

    def _follow(self, partition: TopicPartition, topic_id: TopicId) -> None:
        while not self._stop.is_set():
            try:
                with self._connect() as client:
                    self._follow_with(client, partition, topic_id)
            except ClientError:
                # A leader moved or a broker restarted. Records that came meanwhile would look late, so we
                # begin at the end again.
                self._stop.wait(_RETRY_S)

    def _follow_with(self, client: BrokerClient, partition: TopicPartition, topic_id: TopicId) -> None:
        offset = client.list_offsets({partition: LATEST})[partition].offset
        while not self._stop.is_set():
            answer = client.fetch_raw(
                topic_id,
                partition,
                offset,
                max_bytes=_FETCH_BYTES,
                isolation=READ_COMMITTED,
                max_wait_ms=_WAIT_MS,
            )
            now_ms = time.time_ns() // 1_000_000
            for next_offset, count, delay_ms in batch_delays(answer.records, offset, now_ms):
                offset = next_offset
                if count:
                    self._add(partition.topic, count, delay_ms)

    def _add(self, topic: str, count: int, delay_ms: int) -> None:
        with self._lock:
            self._classes[topic, class_of(delay_ms)] += count
            self._largest[topic] = max(self._largest.get(topic, delay_ms), delay_ms)
