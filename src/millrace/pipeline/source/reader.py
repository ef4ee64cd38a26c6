"""The batch reader of `spark.read.format("millrace")`: plans on the driver, reads ranges in workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millrace.client.broker_client import EARLIEST
from millrace.client.errors import InvalidOption
from millrace.core.ids import TopicPartition, format_topic_id
from millrace.core.override import override
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.source.options import SourceOptions
from millrace.pipeline.source.planning import Planner, Range, split_ranges
from millrace.pipeline.source.pushdown import Bounds, push
from millrace.pipeline.spark.missing_package import Announced

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.client.broker_client import TopicInfo
    from millrace.pipeline.lake.archived_rows import ArchiveSplit


class RangeTask(InputPartition):
    """One task's share: a range of offsets of one partition."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(None)
        self.range = wanted


class ArchiveTask(InputPartition):
    """One task's share of an archive."""

    def __init__(self, split: ArchiveSplit) -> None:
        super().__init__(None)
        self.split = split


@dataclass(slots=True)
class _Plan:
    planner: Planner
    topics: dict[str, TopicInfo]
    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]


class MillraceReader(DataSourceReader, metaclass=Announced):
    """Reads what the topics held when the query was planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds = Bounds()

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for condition in filters:
            bounds = push(self._bounds, condition)
            # We do not search an archive's files by time.
            if bounds is None or (
                self._options.archive and bounds.limits_time and not self._bounds.limits_time
            ):
                yield condition
            else:
                self._bounds = bounds

    @override
    def partitions(self) -> Sequence[InputPartition]:
        with self._options.client() as client:
            plan = self._plan(Planner(client, self._options))
            archived: list[ArchiveTask] = []
            if self._options.archive is not None:
                archived = self._take_archived(plan, self._options.archive)
            self._narrow(plan)
        ranges = [
            Range(
                topic_id=plan.topics[each.topic].topic_id,
                partition=each,
                start=max(start, self._bounds.offset_from),
                end=min(plan.ends[each], self._bounds.offset_to),
            )
            for each, start in plan.starts.items()
            if self._bounds.allows(each)
        ]
        options = self._options
        tasks = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [*archived, *(RangeTask(each) for each in tasks)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangeTask):
            # We import these late: only tasks decode, and the driver plans sooner without them.
            from millrace.pipeline.records.decoder import RowFilter
            from millrace.pipeline.source.partition_reader import PartitionReader

            rows = RowFilter(
                offset_from=partition.range.start,
                offset_to=partition.range.end,
                timestamp_from_us=self._bounds.timestamp_from_us,
                timestamp_to_us=self._bounds.timestamp_to_us,
            )
            return PartitionReader(self._options, partition.range, self._columns, rows).read()
        if isinstance(partition, ArchiveTask):
            from millrace.pipeline.lake.archived_rows import read_split

            return read_split(partition.split, self._columns)
        # Spark makes up one empty task where there are none.
        return iter(())

    def _plan(self, planner: Planner) -> _Plan:
        topics = planner.topics()
        if not topics:
            raise PipelineError(f"subscribePattern={self._options.pattern} matches no topic")
        partitions = planner.partitions(topics)
        starts, ends = planner.starting(partitions), planner.ending(partitions)
        if self._options.ending.kind == "offsets":
            for each, latest in planner.latest(partitions).items():
                if ends[each] > latest.offset:
                    raise InvalidOption(
                        f"endingOffsets: {ends[each]} for {each} is behind its end, {latest.offset}"
                    )
        return _Plan(planner, topics, starts, ends)

    def _narrow(self, plan: _Plan) -> None:
        """Start at the first record that is as young as the filters want."""
        if self._bounds.timestamp_from_us is None:
            return
        wanted = [each for each in plan.starts if self._bounds.allows(each)]
        young = plan.planner.first_at(wanted, max(0, self._bounds.timestamp_from_us // 1000))
        for each in wanted:
            plan.starts[each] = max(plan.starts[each], young.get(each, plan.ends[each]))

    def _take_archived(self, plan: _Plan, root: str) -> list[ArchiveTask]:
        """Tasks for what the archive holds, taken out of the plan; `earliest` then is its first record."""
        from millrace.pipeline.lake.archived_rows import ArchivedTopic

        for bound in (self._options.starting, self._options.ending):
            if bound.kind in ("timestamp", "timestamps"):
                # Brokers know only what they hold: an older record in the archive would be passed over.
                raise InvalidOption(f"{bound.option} does not go with archive: filter on timestamp instead")
        tasks: list[ArchiveTask] = []
        for name, topic in plan.topics.items():
            archive = ArchivedTopic(root, name, format_topic_id(topic.topic_id), self._options.store)
            ranges: dict[int, tuple[int, int]] = {}
            for each in [each for each in plan.starts if each.topic == name]:
                if (
                    self._options.starting.kind == "earliest"
                    or self._options.starting.number(each) == EARLIEST
                ):
                    plan.starts[each] = archive.first.get(each.partition, plan.starts[each])
                start = max(plan.starts[each], self._bounds.offset_from)
                end = min(plan.ends[each], self._bounds.offset_to)
                if self._bounds.allows(each) and start < end:
                    ranges[each.partition] = (start, end)
            archived, live = archive.archived_part(ranges)
            tasks += [ArchiveTask(split) for split in archive.splits(archived)]
            for number, (_, end) in ranges.items():
                plan.starts[TopicPartition(name, number)] = live.get(number, (end, end))[0]
        return tasks
