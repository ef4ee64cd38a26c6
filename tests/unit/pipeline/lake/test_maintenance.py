"""Upkeep: what is due is done, each commit carries the ledger on, and settings are as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.maintenance import Done, Upkeep, maintain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.lake.table import ArchiveTable

LEDGER = Ledger(topic="orders", topic_id="id", sequence=20, compacted=10)
TODAY = date(2026, 1, 31)


class Spark:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.conf = self
        self.sparkContext = self
        self.defaultParallelism = 2

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        del self.values[name]


class Table:
    """Answers each statement with its rows; keeps statements with the ledger and the settings of the time."""

    def __init__(self, spark: Spark, *, dropped: int = 5, joined: int = 7, unneeded: int = 3) -> None:
        self.ran: list[tuple[str, Ledger | None, dict[str, str]]] = []
        self._answers: dict[str, list[Any]] = {
            "DELETE": [(dropped,)],
            "OPTIMIZE": [(joined,)],
            "VACUUM": [("file",)] * unneeded,
        }
        self._spark = spark
        self._ledger: Ledger | None = None

    @contextmanager
    def commits_carry(self, ledger: Ledger) -> Iterator[None]:
        self._ledger = ledger
        yield
        self._ledger = None

    def sql(self, statement: str) -> Table:
        self.ran.append((statement, self._ledger, dict(self._spark.values)))
        self._rows = self._answers[statement.split(maxsplit=1)[0]]
        return self

    def select(self, _column: str) -> Table:
        return self

    def collect(self) -> list[Any]:
        return self._rows

    def words(self) -> list[str]:
        return [statement.split()[0] for statement, _, _ in self.ran]


def maintained(table: Table, spark: Spark, upkeep: Upkeep, **options: Any) -> Done:
    done = maintain(
        cast("SparkSession", spark), cast("ArchiveTable", table), LEDGER, upkeep, today=TODAY, **options
    )
    assert spark.values == {}
    return done


@pytest.fixture
def spark() -> Spark:
    return Spark()


def test_nothing_is_done_before_it_is_due(spark: Spark) -> None:
    table = Table(spark)
    assert maintained(table, spark, Upkeep(compact_after=11)) == Done(ledger=LEDGER)
    assert table.ran == []


def test_small_files_are_joined_after_so_many_appends_and_the_ledger_knows(spark: Spark) -> None:
    table = Table(spark)
    done = maintained(table, spark, Upkeep(compact_after=10, vacuum_hours=None))
    assert done == Done(ledger=LEDGER.when_compacted(), files_joined=7)
    ((statement, ledger, _),) = table.ran
    assert (statement, ledger) == ("OPTIMIZE {table}", LEDGER.when_compacted())


def test_days_beyond_retention_are_dropped_once_a_day(spark: Spark) -> None:
    upkeep = Upkeep(compact_after=None, retention_days=30, vacuum_hours=None)
    table = Table(spark)
    assert maintained(table, spark, upkeep).rows_dropped == 5
    assert table.ran[0][:2] == ("DELETE FROM {table} WHERE date < DATE'2026-01-01'", LEDGER)
    assert maintained(table, spark, upkeep, drop_days=False).rows_dropped == 0
    # Delta says -1 where it did not count.
    assert maintained(Table(spark, dropped=-1), spark, upkeep).rows_dropped == 0


def test_files_are_only_looked_for_where_something_changed_or_all_is_asked_for(spark: Spark) -> None:
    never_due = Upkeep(compact_after=100)
    table = Table(spark)
    assert maintained(table, spark, never_due).files_removed is None
    assert maintained(table, spark, never_due, force=True).files_removed == 3
    assert table.words() == ["OPTIMIZE", "VACUUM", "VACUUM"]
    assert [statement.endswith("DRY RUN") for statement, _, _ in table.ran[1:]] == [True, False]


@pytest.mark.parametrize("hours, is_checked", [(168, "true"), (167, "false")])
def test_less_than_a_week_is_only_kept_if_delta_is_asked_twice(
    hours: int, is_checked: str, spark: Spark
) -> None:
    table = Table(spark, unneeded=0)
    done = maintained(table, spark, Upkeep(compact_after=None, vacuum_hours=hours), force=True)
    assert done.files_removed == 0
    # Nothing was found, so nothing is removed.
    ((statement, _, values),) = table.ran
    assert f"RETAIN {hours} HOURS" in statement
    assert values["spark.databricks.delta.retentionDurationCheck.enabled"] == is_checked


def test_what_was_done_is_told_in_words() -> None:
    assert Done(ledger=LEDGER).describe() == "nothing to do"
    assert Done(ledger=LEDGER, files_removed=0).describe() == "no file is old enough to be removed"
    assert Done(ledger=LEDGER, files_joined=2, rows_dropped=3, files_removed=4).describe() == (
        "2 small files joined, 3 records beyond retention dropped, 4 files that no version needs removed"
    )
