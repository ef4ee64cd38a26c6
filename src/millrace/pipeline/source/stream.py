"""The stream reader of `spark.readStream.format("millrace")`: decides on the driver how far each batch goes.

Spark keeps the offsets, and where a query began is in the first of them (see `offsets`). This class keeps
nothing that a restart would miss: what it remembers only saves questions.
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

from millrace.client.broker_client import BrokerClient, TopicInfo
from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.core.ids import TopicPartition, format_topic_id
from millrace.core.override import override
from millrace.pipeline.errors import DataLost
from millrace.pipeline.source.offsets import NOT_BEGUN, Mark, Marks, from_json, to_json
from millrace.pipeline.source.options import SourceOptions
from millrace.pipeline.source.planning import Planner, Range, share, split_ranges
from millrace.pipeline.source.reader import RangeTask
from millrace.pipeline.spark.missing_package import Announced

if TYPE_CHECKING:
    import pyarrow as pa

log: Final = logging.getLogger(__name__)

_SAMPLE_BYTES: Final = 256 * 1024
"""We fetch this much of a partition to see how large its records are."""


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=Announced):
    """Each query has one on the driver; every task gets a copy and only calls `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._client: BrokerClient | None = None
        self._target: Marks | None = None
        """With Trigger.AvailableNow: where the query ends."""
        self._beginning: Marks | None = None
        """Where the first batch starts, until Spark has written it down with the end of that batch."""
        self._latest: Marks = {}
        self._committed: Marks = {}
        self._epochs_checked = False
        self._last_batch_at: float | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(NOT_BEGUN)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._find_newest({})

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        is_first = start == NOT_BEGUN
        kept = self._begin() if is_first else _without_starts(from_json(start))
        newest = self._find_newest(kept)
        marks = self._check_epochs(kept, newest)
        latest = self._latest = self._up_to_target(newest)
        # Spark asks for the next batch when all up to `start` is done; the call of `commit` may come later
        # or, for the last batch, never.
        self._commit_progress(kept)
        begins = self._begins(marks, newest, latest)
        ahead = {each: mark.offset - begins[each] for each, mark in latest.items()}
        ahead = {each: size for each, size in ahead.items() if size > 0}
        taken: dict[TopicPartition, int] = {}
        if not self._is_too_little(sum(ahead.values())):
            taken = ahead if isinstance(limit, ReadAllAvailable) else self._limited(ahead, begins)
        elif not is_first and not any(
            begins[each] < mark.offset for each, mark in kept.items() if each in begins
        ):
            return start
        # A batch may be empty: what matters is that Spark writes down where the query began, or to where it
        # went back in a log that was cut, before new records grow past that place.
        end = self._moved(kept, latest, begins, taken, is_first=is_first)
        if end == kept and not is_first:
            return start
        self._last_batch_at = time.monotonic()
        return to_json(end)

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._latest) if self._latest else None

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after = from_json(end)
        if not self._epochs_checked:
            # A batch that a restart repeats is read before anybody asks for the next one.
            self._check_epochs(after, self._find_newest(after), is_planned=True)
        begins = self._starts(start, after)
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
        # We import these late: only tasks decode, and the driver plans sooner without them.
        from millrace.pipeline.records.decoder import RowFilter
        from millrace.pipeline.source.partition_reader import PartitionReader

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

    def _begin(self) -> Marks:
        """Where the options say that the query begins, decided once."""
        if self._beginning is None:
            planner = self._planner()
            topics = planner.topics()
            starts = planner.starting(planner.partitions(topics))
            # The epoch of a place nobody has read from is not known; from the first batch on it is.
            self._beginning = {
                each: Mark(topics[each.topic].topic_id, offset, -1) for each, offset in starts.items()
            }
        return self._beginning

    def _find_newest(self, marks: Marks) -> Marks:
        """Where every partition ends now; raises DataLost if a topic is gone or not the one that was read."""
        planner = self._planner()
        topics = planner.topics(must_exist=not marks)
        self._check_identity(marks, topics)
        partitions = planner.partitions(topics)
        listed = planner.latest(partitions)
        return {
            each: Mark(topics[each.topic].topic_id, listed[each].offset, listed[each].leader_epoch)
            for each in partitions
        }

    def _up_to_target(self, newest: Marks) -> Marks:
        """Leave out what came after a query of Trigger.AvailableNow started."""
        if self._target is None:
            return newest
        return {
            each: mark._replace(offset=min(mark.offset, self._target[each].offset))
            for each, mark in newest.items()
            if _is_same(mark, self._target.get(each))
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

    def _check_epochs(self, marks: Marks, newest: Marks, *, is_planned: bool = False) -> Marks:
        """The marks, moved back to where logs were cut.

        We ask once after a start: while a query runs, brokers refuse to serve what was cut off.
        """
        if self._epochs_checked:
            return marks
        same = {each: mark for each, mark in marks.items() if _is_same(mark, newest.get(each))}
        cut = self._planner().cuts(same)
        for each, offset in cut.items():
            words = "is to be read" if is_planned else "was read"
            self._lose(
                f"{each} {words} up to {marks[each].offset} in epoch {marks[each].epoch}, but that epoch "
                f"ends at {offset} now: records were lost in an unclean election"
            )
        # A batch that is planned already cannot move back, so the next one has to look again.
        self._epochs_checked = not (is_planned and cut)
        return marks | {each: marks[each]._replace(offset=offset) for each, offset in cut.items()}

    def _begins(self, marks: Marks, newest: Marks, wanted: Marks) -> dict[TopicPartition, int]:
        """Where reading goes on in each partition wanted; new partitions and topics are read whole."""
        found = {each: marks[each].offset for each, mark in wanted.items() if _is_same(mark, marks.get(each))}
        fresh = [each for each in wanted if each not in found]
        if fresh:
            listed = self._planner().earliest(fresh)
            found |= {each: listed[each].offset for each in fresh}
        for each in wanted:
            if each in fresh:
                self._check_whole(each, found[each], marks)
            elif found[each] > newest[each].offset:
                self._lose(f"{each} was read up to {found[each]}, but ends at {newest[each].offset} now")
                found[each] = newest[each].offset
        return found

    def _check_whole(self, partition: TopicPartition, begin: int, marks: Marks) -> None:
        """Check a partition that was added to a topic: its first records may be gone before we saw it."""
        is_known = any(each.topic == partition.topic for each in marks)
        if begin > 0 and is_known and partition not in marks and not self._options.assigned:
            self._lose(f"{partition} was added to its topic, and its records before {begin} are gone already")

    def _starts(self, start: Mapping[str, Any], after: Marks) -> dict[TopicPartition, int]:
        """Where the batch up to `after` starts, from what Spark has written down alone."""
        before = {} if start == NOT_BEGUN else from_json(start)
        found: dict[TopicPartition, int] = {}
        for each, mark in after.items():
            known = before.get(each)
            if mark.start is not None:
                found[each] = mark.start
            elif known is not None and _is_same(known, mark):
                found[each] = known.offset
        unsaid = {each: mark for each, mark in after.items() if each not in found}
        if unsaid:
            found |= self._unsaid_starts(unsaid, is_first=start == NOT_BEGUN)
        for each, mark in after.items():
            if found[each] > mark.offset:
                self._lose(f"{each} was read up to {found[each]}, but ends at {mark.offset} now")
                found[each] = mark.offset
        return found

    def _unsaid_starts(self, unsaid: Marks, *, is_first: bool) -> dict[TopicPartition, int]:
        """Starts of batches that older versions planned and never finished: they wrote down none.

        Where a query began at the end of its topics, they asked for that end, a moment later for the end of
        the batch, and for the beginning once more to run it: so not one of those batches has read anything.
        Records of the moment in between are in no batch. A start by time or by offset is found again.
        """
        planner = self._planner()
        if not is_first:
            return {each: listed.offset for each, listed in planner.earliest(unsaid).items()}
        found = planner.starting(list(unsaid))
        for each, mark in unsaid.items():
            if found[each] > mark.offset and self._options.may_start_at_the_end(each):
                self._warn(
                    f"{each} is read from {mark.offset} on: the first batch of this checkpoint was planned "
                    "by an older version, which did not write down where it starts"
                )
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
        """How large the next few batches are as stored, compressed or not, for each offset."""
        from millrace.pipeline.records.decoder import scan_batches

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
        *,
        is_first: bool,
    ) -> Marks:
        """The marks behind the next batch. Where nothing is taken a known mark stays as it was, even its
        epoch: Spark takes any difference for new data."""
        end: Marks = {}
        for each in sorted({*marks, *latest}):
            known, newest = marks.get(each), latest.get(each)
            if known is not None and (newest is None or _is_same(known, newest)):
                begin = begins.get(each, known.offset)
                moved = known._replace(offset=begin) if newest is None or each not in taken else newest
                start = begin if is_first or begin != known.offset else None
            else:
                assert newest is not None, each
                begin = start = begins[each]
                moved = newest
            end[each] = moved._replace(offset=begin + taken.get(each, 0), start=start)
        return end

    def _commit_progress(self, marks: Marks) -> None:
        group = self._options.commit_group
        # A group can have no offset in a topic that is gone, and asking for it would hold up every batch.
        marks = {each: mark for each, mark in marks.items() if _is_same(mark, self._latest.get(each))}
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
        log.warning("%s", message)


def _without_starts(marks: Marks) -> Marks:
    return {each: mark._replace(start=None) for each, mark in marks.items()}


def _is_same(one: Mark, other: Mark | None) -> bool:
    return other is not None and one.topic_id == other.topic_id
