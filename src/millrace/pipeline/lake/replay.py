"""Sends records of an archive back into a topic: chooses them, sends them in portions, proves the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millrace.pipeline.lake import topics
from millrace.pipeline.lake.archive import read_ranges
from millrace.pipeline.lake.errors import ReplayError
from millrace.pipeline.lake.ranges import Selection
from millrace.pipeline.lake.replay_task import RESULT_SCHEMA, TRANSACTION_RECORDS, ReplayTask, sender
from millrace.pipeline.lake.selection import selected
from millrace.pipeline.lake.settings import setting
from millrace.pipeline.lake.table import ArchiveTable
from millrace.pipeline.lake.topics import BrokerOptions
from millrace.pipeline.lake.verify import Comparison, compare, fingerprints
from millrace.wire.compression import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.client.broker_client import BrokerClient, TopicInfo

PORTION_RECORDS: Final = 1_000_000
NEW_TOPIC_CONFIGS: Final = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
"""Records keep their old timestamps, by which a default retention would delete them at once."""

_ADAPTIVE_SETTING: Final = "spark.sql.adaptive.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Which records of an archive come back, and into which topic."""

    root: str
    topic: str
    into: str
    broker: BrokerOptions
    selection: Selection = field(default_factory=Selection)
    replay_id: str | None = None
    """Names this replay: one of the same name goes on where it stopped. By default made of all the above."""
    create: bool = True
    configs: Mapping[str, str] = field(default_factory=dict)
    """Settings of a topic that is created."""
    codec: Codec = Codec.ZSTD
    """An archive does not say how its records were compressed; plain ones take several times the room."""
    portion_records: int = PORTION_RECORDS
    transaction_records: int = TRANSACTION_RECORDS


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The first and the last offset to send of one partition, and how many records that is."""

    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is to be sent, and where it goes."""

    version: int
    group: str
    partitions: Mapping[int, PartitionPlan]
    """All that the selection names."""
    left: Mapping[int, PartitionPlan]
    """What of it has not been sent yet."""
    target_start: Mapping[int, int]
    is_created: bool

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions.values())

    @property
    def records_left(self) -> int:
        return sum(each.records for each in self.left.values())


class Replay:
    """One replay. `prepare`, then `run`, then `verify`; each may be repeated after a failure."""

    def __init__(self, spark: SparkSession, options: ReplayOptions) -> None:
        self._spark: Final = spark
        self._options: Final = options
        self._table: Final = ArchiveTable(spark, options.root, options.topic)

    def preview(self) -> ReplayPlan:
        """What `prepare` would find, without making or writing anything."""
        version = self._table.state().version
        partitions = left = _bounds(self._rows(version))
        group, marks = "", {}
        with self._options.broker.client() as client:
            info = topics.find_topic(client, self._options.into)
            if info is not None:
                group = self._group(info)
                marks = topics.committed(client, group, info.name, info.partitions)
        if marks:
            left = _bounds(_behind(self._rows(version), marks))
        return ReplayPlan(
            version=version, group=group, partitions=partitions, left=left, target_start={}, is_created=False
        )

    def prepare(self) -> ReplayPlan:
        """Look at the archive, make the target if it is missing, remember where its records will begin."""
        state = self._table.state()
        partitions = _bounds(self._rows(state.version))
        needed = max(state.ledger.partitions, max(partitions, default=-1) + 1)
        if needed == 0:
            raise ReplayError(f"the archive of {self._options.topic} is empty")
        with self._options.broker.client() as client:
            is_created = self._ensure_target(client, needed)
            info = topics.find_topic(client, self._options.into)
            assert info is not None, self._options.into
            group = self._group(info)
            start = self._target_start(client, group)
            marks = topics.committed(client, group, self._options.into, range(needed))
        left = _bounds(_behind(self._rows(state.version), marks)) if marks else partitions
        return ReplayPlan(
            version=state.version,
            group=group,
            partitions=partitions,
            left=left,
            target_start=start,
            is_created=is_created,
        )

    def run(self, plan: ReplayPlan, advance: Callable[[int], None]) -> int:
        """Send what is left, portion by portion, and return the number of records sent."""
        task = ReplayTask(
            broker=self._options.broker,
            group=plan.group,
            target=self._options.into,
            codec=self._options.codec,
            transaction_records=self._options.transaction_records,
        )
        sent = 0
        with setting(self._spark, _ADAPTIVE_SETTING, "false"):
            # Spark may neither join nor split tasks: a task keeps the order and the progress of a partition.
            for ranges in portions(plan.left, self._options.portion_records):
                rows = self._portion(plan.version, ranges)
                results = rows.mapInArrow(sender(task), RESULT_SCHEMA).collect()
                count = sum(int(row["sent"]) for row in results)
                sent += count
                advance(count)
        return sent

    def verify(self, plan: ReplayPlan) -> list[Comparison]:
        """Compare archive and topic over everything that this replay has sent, now and in earlier runs."""
        wanted = fingerprints(self._rows(plan.version))
        with self._options.broker.client() as client:
            ends = topics.decided_ends(client, self._options.into)
        ranges = {
            partition: (start, ends[partition])
            for partition, start in plan.target_start.items()
            if start < ends[partition]
        }
        if not ranges:
            return compare(wanted, {})
        found = fingerprints(read_ranges(self._spark, self._options.broker, self._options.into, ranges))
        return compare(wanted, found)

    def _rows(self, version: int) -> DataFrame:
        return selected(self._table.read(version), self._options.selection)

    def _portion(self, version: int, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        low, high = min(start for start, _ in ranges.values()), max(end for _, end in ranges.values())
        bounds = self._spark.createDataFrame(
            [(partition, start, end) for partition, (start, end) in ranges.items()],
            "partition INT, portion_start BIGINT, portion_end BIGINT",
        )
        rows = self._rows(version).where(f"offset >= {low} AND offset < {high}")
        rows = rows.join(F.broadcast(bounds), "partition").where(
            "offset >= portion_start AND offset < portion_end"
        )
        wanted = rows.selectExpr(
            "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "key", "value", "headers"
        )
        return wanted.repartitionById(max(ranges) + 1, "partition").sortWithinPartitions(
            "partition", "offset"
        )

    def _ensure_target(self, client: BrokerClient, partitions: int) -> bool:
        into = self._options.into
        info = topics.find_topic(client, into)
        if info is None:
            if not self._options.create:
                raise ReplayError(f"there is no topic {into}: leave out --no-create to have it made")
            topics.create_topic(client, into, partitions, {**NEW_TOPIC_CONFIGS, **self._options.configs})
            return True
        if len(info.partitions) < partitions:
            raise ReplayError(
                f"records keep their partition: topic {into} has {len(info.partitions)} partitions, the"
                f" archive of {self._options.topic} has {partitions} (`millrace topic alter {into}"
                f" --partitions {partitions}`)"
            )
        return False

    def _target_start(self, client: BrokerClient, group: str) -> dict[int, int]:
        """The target's ends before the first record of this replay, kept as offsets of a second group."""
        into = self._options.into
        ends = topics.decided_ends(client, into)
        kept = topics.committed(client, f"{group}-start", into, ends)
        missing = {partition: end for partition, end in ends.items() if partition not in kept}
        if missing:
            topics.commit(client, f"{group}-start", into, missing)
        return {**missing, **kept}

    def _group(self, info: TopicInfo) -> str:
        """The group whose offsets say how far this replay has come."""
        if self._options.replay_id is not None:
            return f"millrace-replay-{self._options.replay_id}"
        options = self._options
        parts = (self._table.path, options.topic, info.name, info.topic_id.hex(), repr(options.selection))
        return "millrace-replay-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def portions(left: Mapping[int, PartitionPlan], limit: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Cut what is left into ranges of offsets, about `limit` records at a time over all partitions."""
    count = max(1, -(-sum(each.records for each in left.values()) // limit))
    for number in range(count):
        ranges: dict[int, tuple[int, int]] = {}
        for partition, plan in sorted(left.items()):
            span = plan.last + 1 - plan.first
            start, end = plan.first + span * number // count, plan.first + span * (number + 1) // count
            if start < end:
                ranges[partition] = (start, end)
        if ranges:
            yield ranges


def _bounds(rows: DataFrame) -> dict[int, PartitionPlan]:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    found = rows.groupBy("partition").agg(F.min("offset"), F.max("offset"), F.count(F.lit(1))).collect()
    return {int(row[0]): PartitionPlan(int(row[1]), int(row[2]), int(row[3])) for row in found}


def _behind(rows: DataFrame, marks: Mapping[int, int]) -> DataFrame:
    """Rows that no mark has passed."""
    unmarked = f"partition NOT IN ({', '.join(map(str, sorted(marks)))})"
    behind = [f"(partition = {partition} AND offset >= {mark})" for partition, mark in sorted(marks.items())]
    return rows.where(" OR ".join([unmarked, *behind]))
