"""The stream reader of `spark.readStream.format("millrace")`: decides on the driver how far each batch goes.

Spark keeps the offsets. This class keeps nothing that a restart would miss: what it remembers only saves
questions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millrace.core.ids import TopicPartition, format_topic_id
from millrace.core.override import override
from millrace.pipeline.errors import BrokerRefused, ConnectionFailed, DataLost
from millrace.pipeline.kafka_client import BrokerClient, TopicInfo
from millrace.pipeline.offsets import Mark, Marks, from_json, to_json
from millrace.pipeline.options import SourceOptions
from millrace.pipeline.planning import Planner, Range, share, split_ranges
from millrace.pipeline.reader import RangeTask

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)

_SAMPLE_BYTES: Final = 256 * 1024
"""So much of a partition is looked at to know how large its records are."""


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One for a query on the driver, and a copy of it in every task, which only calls `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._client: BrokerClient | None = None
        self._target: Marks | None = None
        """With Trigger.AvailableNow: where the query ends."""
        self._latest: Marks = {}
        self._committed: Marks = {}
        self._epochs_checked = False
        self._last_batch_at: float | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._planner()
        topics = planner.topics()
        partitions = planner.partitions(topics)
        starts = planner.starting(partitions)
        # The epoch of a place nobody has read from is not known; from the first batch on it is.
        return to_json({each: Mark(topics[each.topic].topic_id, starts[each], -1) for each in partitions})

    @override
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._find_latest({})

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        marks = from_json(start)
        # Spark asks for the next batch when all up to `start` is done; the call of `commit` may come later
        # or, for the last batch, never.
        self._commit_progress(marks)
        latest = self._find_latest(marks)
        if not self._epochs_checked:
            self._check_epochs(marks, latest)
        self._latest = latest
        begins = self._begins(marks, latest)
        ahead = {each: mark.offset - begins[each] for each, mark in latest.items()}
        ahead = {each: size for each, size in ahead.items() if size > 0}
        if self._is_too_little(sum(ahead.values())):
            return start
        taken = ahead if isinstance(limit, ReadAllAvailable) else self._limited(ahead, begins)
        end = self._moved(marks, latest, begins, taken)
        if end == marks:
            return start
        self._last_batch_at = time.monotonic()
        return to_json(end)

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._latest) if self._latest else None

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = from_json(start), from_json(end)
        begins = self._begins(before, after)
        ranges = [
            Range(topic_id=mark.topic_id, partition=each, start=begins[each], end=mark.offset)
            for each, mark in after.items()
        ]
        options = self._options
        tasks = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangeTask(each) for each in tasks]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangeTask):
            return iter(())
        # Late: only tasks decode, and the driver plans sooner without.
        from millrace.pipeline.decoder import RowFilter
        from millrace.pipeline.partition_reader import PartitionReader

        rows = RowFilter(offset_from=partition.range.start, offset_to=partition.range.end)
        return PartitionReader(self._options, partition.range, self._columns, rows).read()

    @override
    def commit(self, end: dict[str, Any]) -> None:
        self._commit_progress(from_json(end))

    @override
    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _planner(self) -> Planner:
        return Planner(self._open_client(), self._options)

    def _open_client(self) -> BrokerClient:
        if self._client is None:
            self._client = self._options.client()
        return self._client

    def _find_latest(self, marks: Marks) -> Marks:
        """Where every partition ends now; DataLost if a topic is gone or is not the one that was read."""
        planner = self._planner()
        topics = planner.topics(must_exist=not marks)
        self._check_identity(marks, topics)
        partitions = planner.partitions(topics)
        listed = planner.latest(partitions)
        latest = {
            each: Mark(topics[each.topic].topic_id, listed[each].offset, listed[each].leader_epoch)
            for each in partitions
        }
        if self._target is None:
            return latest
        # What came after the query started is not its business.
        return {
            each: mark._replace(offset=min(mark.offset, self._target[each].offset))
            for each, mark in latest.items()
            if each in self._target and self._target[each].topic_id == mark.topic_id
        }

    def _check_identity(self, marks: Marks, topics: Mapping[str, TopicInfo]) -> None:
        for each, mark in marks.items():
            topic = topics.get(each.topic)
            if topic is None:
                self._lose(f"topic {each.topic} does not exist any more, or is no longer chosen")
            elif topic.topic_id != mark.topic_id:
                self._lose(
                    f"topic {each.topic} was deleted and created again: its id was "
                    f"{format_topic_id(mark.topic_id)} and is {format_topic_id(topic.topic_id)} now"
                )
            elif each.partition not in topic.partitions:
                self._lose(f"{each} does not exist any more")

    def _check_epochs(self, marks: Marks, latest: Marks) -> None:
        """Once after a start: while a query runs, brokers refuse to serve what was cut off."""
        same = {each: mark for each, mark in marks.items() if _is_same(mark, latest.get(each))}
        try:
            self._planner().check_epochs(same)
        except DataLost as lost:
            self._lose(str(lost))
        self._epochs_checked = True

    def _begins(self, before: Marks, after: Marks) -> dict[TopicPartition, int]:
        """Where reading goes on in each partition of `after`; new partitions and topics are read whole."""
        fresh = [each for each, mark in after.items() if not _is_same(mark, before.get(each))]
        found = {each: before[each].offset for each in after if each not in fresh}
        if fresh:
            listed = self._planner().earliest(fresh)
            found |= {each: listed[each].offset for each in fresh}
        for each, mark in after.items():
            if found[each] > mark.offset and self._target is None:
                self._lose(f"{each} was read up to {found[each]}, but ends at {mark.offset} now")
                found[each] = mark.offset
        return found

    def _is_too_little(self, available: int) -> bool:
        options = self._options
        if self._target is not None or available >= options.min_offsets_per_trigger:
            return available == 0
        # The first batch waits from the time when it was first asked for.
        self._last_batch_at = self._last_batch_at or time.monotonic()
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        return available == 0 or waited_ms < options.max_trigger_delay_ms

    def _limited(
        self, ahead: Mapping[TopicPartition, int], begins: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        taken = dict(ahead)
        if self._options.max_offsets_per_trigger:
            taken = share(self._options.max_offsets_per_trigger, taken, dict.fromkeys(taken, 1.0))
        if self._options.max_bytes_per_trigger:
            weights = {each: self._bytes_per_offset(each, begins[each]) for each in taken}
            taken = share(self._options.max_bytes_per_trigger, taken, weights)
        return taken

    def _bytes_per_offset(self, partition: TopicPartition, offset: int) -> float:
        """As stored, compressed or not, in the next few batches."""
        from millrace.pipeline.decoder import scan_batches

        client = self._open_client()
        mark = self._latest[partition]
        try:
            fetched = client.retrying(
                lambda: client.fetch_raw(mark.topic_id, partition, offset, max_bytes=_SAMPLE_BYTES)
            )
        except BrokerRefused:
            # The task that reads this will say what is wrong, or go on without.
            return 1.0
        scan = scan_batches(fetched.records, offset, mark.offset, [], check_crc=False)
        return max(1.0, scan.bytes_read / max(1, scan.next_offset - offset))

    def _moved(
        self,
        marks: Marks,
        latest: Marks,
        begins: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int],
    ) -> Marks:
        """The marks behind the next batch. Where nothing is taken a known mark stays as it was, even its
        epoch: Spark takes any difference for new data."""
        end: Marks = {}
        for each in sorted({*marks, *latest}):
            known, newest = marks.get(each), latest.get(each)
            if newest is None:
                if known is not None:
                    end[each] = known
            elif each not in taken and known is not None and _is_same(known, newest):
                end[each] = known._replace(offset=min(known.offset, begins[each]))
            else:
                end[each] = newest._replace(offset=begins[each] + taken.get(each, 0))
        return end

    def _commit_progress(self, marks: Marks) -> None:
        group = self._options.commit_group
        if group is None or not marks or marks == self._committed:
            return
        try:
            self._open_client().commit(group, {each: mark.offset for each, mark in marks.items()})
        except ConnectionFailed as failure:
            self._warn(f"progress was not committed to group {group}: {failure}")
            return
        except BrokerRefused as refused:
            if not refused.retriable:
                raise
            self._warn(f"progress was not committed to group {group}: {refused}")
            return
        self._committed = marks

    def _lose(self, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{reason}. failOnDataLoss=false goes on with what is there")
        self._warn(f"{reason}; going on, as failOnDataLoss=false says")

    def _warn(self, message: str) -> None:
        _log.warning("%s", message)


def _is_same(one: Mark, other: Mark | None) -> bool:
    return other is not None and one.topic_id == other.topic_id
