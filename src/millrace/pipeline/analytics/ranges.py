"""What a run of analytics reads: from where the last run ended to the present end, and its time buckets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.client.broker_client import EARLIEST, LATEST, BrokerClient
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError

BUCKETS_WANTED: Final = 120
_BUCKET_CHOICES_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
_MAX_TIMESTAMP: Final = -3


@dataclass(frozen=True, slots=True)
class LastEnd:
    """Where an earlier run ended in one partition, and in which topic of that name."""

    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """One topic of a run; offsets by partition, the end is not included."""

    topic: str
    topic_id: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    bucket_ms: int

    @property
    def messages(self) -> int:
        """The most messages that the range can hold: compaction and transactions leave gaps."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)


def starting_offsets(ranges: Sequence[ReadRange]) -> str:
    """Where all ranges start, as the data source's option `startingOffsets` wants it."""
    return json.dumps({each.topic: {str(key): value for key, value in each.start.items()} for each in ranges})


def ending_offsets(ranges: Sequence[ReadRange]) -> str:
    """Where all ranges end, as the data source's option `endingOffsets` wants it."""
    return json.dumps({each.topic: {str(key): value for key, value in each.end.items()} for each in ranges})


def plan_range(
    client: BrokerClient,
    topic: str,
    *,
    last: Mapping[int, LastEnd],
    from_ms: int | None,
    to_ms: int | None,
    bucket_ms: int | None,
) -> ReadRange:
    """What to read of one topic; raises PipelineError if it does not exist."""
    info = client.metadata([topic]).get(topic)
    if info is None:
        raise PipelineError(f"there is no topic {topic}")
    partitions = [TopicPartition(topic, number) for number in info.partitions]
    topic_id = info.topic_id.hex()
    earliest = _offsets(client, partitions, EARLIEST)
    end = _offsets(client, partitions, LATEST)
    if to_ms is not None:
        end = _at_time(client, partitions, to_ms, otherwise=end)
    if from_ms is not None:
        start = _at_time(client, partitions, from_ms, otherwise=end)
    else:
        start = {each: _continued(last.get(each.partition), topic_id, earliest[each]) for each in partitions}
    return ReadRange(
        topic=topic,
        topic_id=topic_id,
        start={each.partition: min(start[each], end[each]) for each in partitions},
        end={each.partition: end[each] for each in partitions},
        bucket_ms=bucket_ms or _fitting_bucket_ms(client, start, end),
    )


def _continued(last: LastEnd | None, topic_id: str, earliest: int) -> int:
    """Go on where the last run ended; a topic that was deleted and created again is read from its start."""
    return earliest if last is None or last.topic_id != topic_id else max(earliest, last.offset)


def _offsets(
    client: BrokerClient, partitions: Sequence[TopicPartition], moment: int
) -> dict[TopicPartition, int]:
    listed = client.list_offsets(dict.fromkeys(partitions, moment))
    return {partition: found.offset for partition, found in listed.items()}


def _at_time(
    client: BrokerClient,
    partitions: Sequence[TopicPartition],
    moment_ms: int,
    *,
    otherwise: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    listed = client.list_offsets(dict.fromkeys(partitions, moment_ms))
    return {each: listed[each].offset if listed[each].offset >= 0 else otherwise[each] for each in partitions}


def _fitting_bucket_ms(
    client: BrokerClient, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> int:
    """Buckets of a round length, about a hundred over the time that the topic spans."""
    filled = [each for each in end if end[each] > start[each]]
    if not filled:
        return 1000 * _BUCKET_CHOICES_S[0]
    # We look at the topic's first record, not this run's: later runs should find the same length.
    first = [each.timestamp for each in client.list_offsets(dict.fromkeys(filled, 0)).values()]
    last = [each.timestamp for each in client.list_offsets(dict.fromkeys(filled, _MAX_TIMESTAMP)).values()]
    return bucket_ms_for(max(last) - min(first))


def bucket_ms_for(span_ms: int) -> int:
    """The smallest round length that does not cut `span_ms` into more than the wanted number of buckets."""
    for choice in _BUCKET_CHOICES_S:
        if span_ms <= choice * 1000 * BUCKETS_WANTED:
            return choice * 1000
    days = -(-span_ms // (86_400_000 * BUCKETS_WANTED))
    return days * 86_400_000
