"""An archive's Delta table through Spark, with the ledger in every commit of ours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.pipeline.lake.delta_log import read_history
from millrace.pipeline.lake.errors import ConcurrentArchive, ForeignTable, NoArchive
from millrace.pipeline.lake.ledger import APPLICATION_ID, Ledger, ledger_of
from millrace.pipeline.lake.location import is_local, quoted, table_path
from millrace.pipeline.lake.ranges import DAY_MS, LAST_DAY
from millrace.pipeline.lake.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
SCHEMA: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, key BINARY,"
    " value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, date DATE"
)

_METADATA_SETTING: Final = "spark.databricks.delta.commitInfo.userMetadata"
_PROPERTIES: Final = {
    # `delta_log` cannot read deletion vectors, and rows leave by whole days anyway.
    "delta.enableDeletionVectors": "false",
    # Readers skip files by the bounds of these columns; nobody looks payloads up by their bounds.
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp",
    "delta.checkpointPolicy": "classic",
}
_RECENT_COMMITS: Final = 50
_LOST_RACES: Final = (
    "ConcurrentTransactionException",
    "DELTA_CONCURRENT_TRANSACTION",
    "ConcurrentWriteException",
)


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of the table and its ledger."""

    version: int
    ledger: Ledger


class ArchiveTable:
    """The table of one topic. One writer at a time; a second one is found out before it commits anything."""

    def __init__(self, spark: SparkSession, root: str, topic: str) -> None:
        self.topic: Final = topic
        self.path: Final = table_path(root, topic)
        self._spark: Final = spark
        self._name: Final = quoted(self.path)

    def exists(self) -> bool:
        if is_local(self.path):
            return bool(read_history(self.path, 1))
        jvm = self._spark._jvm
        assert jvm is not None, "archives need a Spark with its JVM beside it"
        return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(self._spark._jsparkSession, self.path))

    def create(self, ledger: Ledger) -> None:
        """Make the table, with the ledger from which archiving starts in its very first commit."""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self._properties().items())
        with self.commits_carry(ledger):
            self._spark.sql(
                f"CREATE TABLE {self._name} ({SCHEMA}) USING delta PARTITIONED BY (date)"
                f" TBLPROPERTIES ({properties})"
            )

    def state(self) -> TableState:
        """The newest version and ledger. Raises NoArchive or ForeignTable."""
        if not self.exists():
            raise NoArchive(self.topic, self.path)
        recent = self._history(_RECENT_COMMITS)
        found = _newest_ledger(recent)
        if found is None and len(recent) == _RECENT_COMMITS:
            found = _newest_ledger(self._history(None))
        if found is None:
            found = self._ledger_from_rows(recent[0][0])
        return TableState(recent[0][0], found)

    def read(self, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", str(version))
        return reader.load(self.path)

    def append(self, rows: DataFrame, ledger: Ledger) -> None:
        """Commit rows and ledger as one version. Raises ConcurrentArchive if somebody else was first."""
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        # Delta refuses to commit one number of one application twice, so a repeated batch changes nothing.
        writer = writer.option("txnAppId", ledger.application_id).option("txnVersion", str(ledger.sequence))
        try:
            writer.option("userMetadata", ledger.to_json()).save(self.path)
        except Exception as error:  # told apart by Delta's own names, which come as text
            if any(name in str(error) for name in _LOST_RACES):
                raise self._lost_race() from error
            raise
        newest = _newest_ledger(self._history(1)) or self.state().ledger
        if newest != ledger:
            raise self._lost_race()

    def commits_carry(self, ledger: Ledger) -> AbstractContextManager[None]:
        """SQL statements inside the block commit with this ledger in their metadata."""
        return setting(self._spark, _METADATA_SETTING, ledger.to_json())

    def sql(self, statement: str) -> DataFrame:
        """Run a statement in which `{table}` stands for this table."""
        return self._spark.sql(statement.replace("{table}", self._name))

    def _properties(self) -> dict[str, str]:
        return _PROPERTIES | {"millrace.topic": self.topic}

    def _history(self, limit: int | None) -> list[tuple[int, str | None]]:
        """Versions with the metadata of their commits, the newest first."""
        if is_local(self.path):
            # These are a few small files, for which Spark would start several jobs.
            return read_history(self.path, limit)
        return self._history_by_spark(limit)

    def _history_by_spark(self, limit: int | None) -> list[tuple[int, str | None]]:
        """The same through Spark, which has the keys to object stores."""
        statement = "DESCRIBE HISTORY {table}" + (f" LIMIT {limit}" if limit else "")
        rows = self.sql(statement).select("version", "userMetadata").collect()
        return sorted(((int(row[0]), row[1]) for row in rows), reverse=True)

    def _ledger_from_rows(self, version: int) -> Ledger:
        """Rebuild the ledger from rows: after a month of others' commits the log may hold none of ours."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        properties = {str(row[0]): row[1] for row in self.sql("SHOW TBLPROPERTIES {table}").collect()}
        if properties.get("millrace.topic") != self.topic:
            raise ForeignTable(f"{self.path} is a Delta table, but no archive of topic {self.topic}")
        bounds = self.read().groupBy("partition").agg(F.min("offset"), F.max("offset")).collect()
        return Ledger(
            topic=self.topic,
            topic_id="",
            # We no longer know how far the old name had counted, so we begin to count under a new one.
            application_id=f"{APPLICATION_ID}-{version}",
            first={int(row[0]): int(row[1]) for row in bounds},
            next={int(row[0]): int(row[2]) + 1 for row in bounds},
        )

    def _lost_race(self) -> ConcurrentArchive:
        return ConcurrentArchive(
            f"another process archives into {self.path} at the same time: this one has committed"
            " nothing; let only one run"
        )


def with_date(rows: DataFrame) -> DataFrame:
    """Add the column by which the table is partitioned: the record's day in UTC, in any session's zone."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    day = f"CAST(greatest(0, least({LAST_DAY}, floor(unix_millis(timestamp) / {DAY_MS}))) AS INT)"
    return rows.withColumn("date", F.expr(f"date_from_unix_date({day})"))


def _newest_ledger(history: list[tuple[int, str | None]]) -> Ledger | None:
    return next(
        (ledger for ledger in map(ledger_of, (row[1] for row in history)) if ledger is not None), None
    )
