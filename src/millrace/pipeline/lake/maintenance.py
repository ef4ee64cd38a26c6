"""Upkeep of an archive's table: small files joined, old days dropped, files that no version needs removed.

Every commit made here carries the ledger on, so that the log always holds one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.settings import setting
from millrace.pipeline.lake.table import ArchiveTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACT_AFTER_APPENDS: Final = 16
VACUUM_AFTER_HOURS: Final = 7 * 24
FILE_BYTES: Final = 256 << 20
"""A task of a reader holds some of a file in memory; beyond this size a file saves nothing more."""

_FILE_SIZE_SETTING: Final = "spark.databricks.delta.optimize.maxFileSize"
_LISTING_SETTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_VACUUM_CHECK_SETTING: Final = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What is done for the tables of an archive between appends."""

    compact_after: int | None = COMPACT_AFTER_APPENDS
    """Join small files after this many appends; None never does, 0 always."""
    retention_days: int | None = None
    """Drop days older than this; None keeps all."""
    vacuum_hours: int | None = VACUUM_AFTER_HOURS
    """Remove files that no version of the last hours needs; None keeps them. Delta counts in whole hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done; `ledger` is the table's ledger afterwards."""

    ledger: Ledger
    files_joined: int = 0
    rows_dropped: int = 0
    files_removed: int | None = None
    """How many files were removed that no version needs any more; None if nobody looked for them."""

    def describe(self) -> str:
        words: list[str] = []
        if self.files_joined:
            words.append(f"{self.files_joined} small files joined")
        if self.rows_dropped:
            words.append(f"{self.rows_dropped} records beyond retention dropped")
        if self.files_removed:
            words.append(f"{self.files_removed} files that no version needs removed")
        elif self.files_removed is not None:
            words.append("no file is old enough to be removed")
        return ", ".join(words) or "nothing to do"


def maintain(
    spark: SparkSession,
    table: ArchiveTable,
    ledger: Ledger,
    upkeep: Upkeep,
    *,
    today: date,
    drop_days: bool = True,
    force: bool = False,
) -> Done:
    """Do what is due, or with `force` all that is configured; `drop_days` is worth a look once a day."""
    dropped = joined = 0
    if upkeep.retention_days is not None and drop_days:
        dropped = _drop_days(table, ledger, today - timedelta(days=upkeep.retention_days))
    is_due = upkeep.compact_after is not None and (
        force or ledger.sequence - ledger.compacted >= max(1, upkeep.compact_after)
    )
    if is_due:
        ledger = ledger.when_compacted()
        joined = _join_files(spark, table, ledger)
    removed = None
    if upkeep.vacuum_hours is not None and (force or dropped or joined):
        removed = _vacuum(spark, table, upkeep.vacuum_hours)
    return Done(ledger=ledger, files_joined=joined, rows_dropped=dropped, files_removed=removed)


def _drop_days(table: ArchiveTable, ledger: Ledger, oldest: date) -> int:
    """Drop the days before `oldest`: whole folders, so that no file is written anew."""
    with table.commits_carry(ledger):
        (row,) = table.sql(f"DELETE FROM {{table}} WHERE date < DATE'{oldest.isoformat()}'").collect()
    # Delta says -1 where it did not need to count.
    return max(0, int(row[0] or 0))


def _join_files(spark: SparkSession, table: ArchiveTable, ledger: Ledger) -> int:
    with setting(spark, _FILE_SIZE_SETTING, str(FILE_BYTES)), table.commits_carry(ledger):
        (row,) = table.sql("OPTIMIZE {table}").select("metrics.numFilesRemoved").collect()
    return int(row[0] or 0)


def _vacuum(spark: SparkSession, table: ArchiveTable, hours: int) -> int:
    """Remove files that no version of the last hours needs, and return how many."""
    # Delta refuses less than a week unless we switch its check off; a user who gives the option means it.
    is_checked = str(hours >= VACUUM_AFTER_HOURS).lower()
    # Delta lists folders with 10,000 tasks by default, however few folders there are.
    tasks = str(4 * spark.sparkContext.defaultParallelism)
    vacuum = f"VACUUM {{table}} RETAIN {hours} HOURS"
    with setting(spark, _VACUUM_CHECK_SETTING, is_checked), setting(spark, _LISTING_SETTING, tasks):
        # Delta does not say how many files it has removed, only which ones it would.
        found = len(table.sql(f"{vacuum} DRY RUN").collect())
        if found:
            table.sql(vacuum).collect()
    return found
