"""Topics into Delta tables: each step reads ranges of offsets, and commits records and ranges as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from millrace.pipeline.lake import topics
from millrace.pipeline.lake.errors import RecordsLost, TopicRecreated
from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.ranges import next_ranges
from millrace.pipeline.lake.table import COLUMNS, ArchiveTable, with_date
from millrace.pipeline.lake.topics import BrokerOptions, TopicBounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from millrace.client.broker_client import BrokerClient

BATCH_RECORDS: Final = 2_000_000
Ranges = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What an archive is to hold, and where."""

    root: str
    broker: BrokerOptions
    start: Literal["earliest", "latest"] = "earliest"
    """Where a new archive begins."""
    batch_records: int = BATCH_RECORDS
    """The most offsets that one commit takes."""
    allow_gaps: bool = False
    """Go on behind records that the topic has deleted before they were archived."""
    decode: Callable[[DataFrame], DataFrame] | None = None
    """Adds decoded columns to rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One commit: what was read, and what is left up to the end that was known."""

    ranges: Ranges
    lost: Ranges
    remaining: int

    @property
    def offsets(self) -> int:
        return sum(end - start for start, end in self.ranges.values())


class TopicArchive:
    """Archives one topic. After a death at any moment the next process goes on without a gap or a double."""

    def __init__(self, spark: SparkSession, topic: str, options: ArchiveOptions) -> None:
        self.topic: Final = topic
        self.table: Final = ArchiveTable(spark, options.root, topic)
        self._spark: Final = spark
        self._options: Final = options
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None, "open first"
        return self._ledger

    def open(self, client: BrokerClient) -> None:
        """Find or make the table. Raises if it is no archive of this topic."""
        bounds = topics.topic_bounds(client, self.topic)
        if not self.table.exists():
            start = bounds.end if self._options.start == "latest" else bounds.start
            self.table.create(
                Ledger(topic=self.topic, topic_id=bounds.topic_id, first=dict(start), next=dict(start))
            )
        ledger = self.table.state().ledger
        self._check_identity(ledger, bounds)
        self._ledger = replace(ledger, topic_id=bounds.topic_id)

    def ends(self, client: BrokerClient) -> TopicBounds:
        """Where the topic begins and ends now; an open transaction's records are not yet part of it."""
        bounds = topics.topic_bounds(client, self.topic)
        self._check_identity(self.ledger, bounds)
        return bounds

    def step(self, bounds: TopicBounds) -> Step | None:
        """Archive the next ranges below the given ends; None if there is nothing."""
        positions, lost = self._positions(bounds)
        ranges = next_ranges(positions, bounds.end, self._options.batch_records)
        if not ranges:
            return None
        ledger = self.ledger.after(ranges)
        self.table.append(self._rows(ranges), ledger)
        self._ledger = ledger
        remaining = sum(max(0, end - ledger.next.get(partition, 0)) for partition, end in bounds.end.items())
        return Step(ranges=ranges, lost=lost, remaining=remaining)

    def maintained(self, ledger: Ledger) -> None:
        """Take over the ledger that maintenance committed."""
        self._ledger = ledger

    def _check_identity(self, ledger: Ledger, bounds: TopicBounds) -> None:
        if ledger.topic_id not in ("", bounds.topic_id):
            raise TopicRecreated(
                f"topic {self.topic} was deleted and created again since {self.table.path} was begun: its"
                " offsets start over, so archive it to another place"
            )

    def _positions(self, bounds: TopicBounds) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """Where to go on in each partition, and which offsets the topic deleted before they were archived."""
        positions: dict[int, int] = {}
        lost: dict[int, tuple[int, int]] = {}
        for partition, start in bounds.start.items():
            # A partition that was added later is archived from its first record, wherever the others began.
            position = self.ledger.next.get(partition, 0)
            if position < start:
                lost[partition] = (position, start)
            positions[partition] = max(position, start)
        if lost and not self._options.allow_gaps:
            raise RecordsLost(
                f"{_names(self.topic, lost)} left the topic before they were archived (retention or"
                " deletion); --allow-gaps goes on behind them"
            )
        return positions, lost

    def _rows(self, ranges: Ranges) -> DataFrame:
        rows = read_ranges(self._spark, self._options.broker, self.topic, ranges).select(*COLUMNS)
        if self._options.decode is not None:
            rows = self._options.decode(rows)
        return with_date(rows)


def read_ranges(spark: SparkSession, broker: BrokerOptions, topic: str, ranges: Ranges) -> DataFrame:
    """Read exactly these offsets of a topic; fail rather than leave out records that are gone."""
    options = broker.source_options() | {
        "assign": json.dumps({topic: sorted(ranges)}),
        "startingOffsets": json.dumps(
            {topic: {str(key): start for key, (start, _) in sorted(ranges.items())}}
        ),
        "endingOffsets": json.dumps({topic: {str(key): end for key, (_, end) in sorted(ranges.items())}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return spark.read.format("millrace").options(**options).load()


def _names(topic: str, ranges: Ranges) -> str:
    return ", ".join(f"offsets {start} to {end - 1} of {topic}-{key}" for key, (start, end) in ranges.items())
