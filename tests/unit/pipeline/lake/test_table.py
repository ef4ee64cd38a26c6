"""An archive's table without Spark: its state is in its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from millrace.pipeline.lake.errors import ConcurrentArchive, NoArchive
from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.table import ArchiveTable, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Spark:
    """Keeps statements, and the settings they were run with."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.ran: list[tuple[str, dict[str, str]]] = []
        self.conf = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        del self.values[name]

    def sql(self, statement: str) -> None:
        self.ran.append((statement, dict(self.values)))


class Rows:
    """Rows whose writer commits what it is told into a log, or fails as Delta does."""

    def __init__(self, log: Log, *, others: Ledger | None = None, error: Exception | None = None) -> None:
        self.write = self
        self.chosen: dict[str, str] = {}
        self._log = log
        self._others = others
        self._error = error

    def format(self, _name: str) -> Rows:
        return self

    def mode(self, name: str) -> Rows:
        assert name == "append"
        return self

    def option(self, name: str, value: str) -> Rows:
        self.chosen[name] = value
        return self

    def save(self, _path: str) -> None:
        if self._error is not None:
            raise self._error
        self._log.commit(self._others.to_json() if self._others else self.chosen["userMetadata"])

    def frame(self) -> DataFrame:
        return cast("DataFrame", self)


class Log:
    def __init__(self, root: Path) -> None:
        self.folder = root / "orders" / "_delta_log"
        self.version = -1

    def commit(self, metadata: str | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version += 1
        info = {"operation": "WRITE"} | ({"userMetadata": metadata} if metadata else {})
        (self.folder / f"{self.version:020}.json").write_text(json.dumps({"commitInfo": info}))


LEDGER = Ledger(topic="orders", topic_id="id", sequence=3, first={0: 0}, next={0: 5})


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def table(tmp_path: Path, spark: Spark) -> ArchiveTable:
    return ArchiveTable(cast("SparkSession", spark), str(tmp_path), "orders")


def test_a_place_without_a_log_is_no_archive(table: ArchiveTable, log: Log) -> None:
    assert not table.exists()
    with pytest.raises(NoArchive, match="no archive of topic orders"):
        table.state()
    log.commit()
    assert table.exists()


@pytest.mark.parametrize("others", [0, 3, 60])
def test_the_newest_ledger_counts_however_many_commits_of_others_follow(
    others: int, table: ArchiveTable, log: Log
) -> None:
    log.commit(Ledger(topic="orders", topic_id="id").to_json())
    log.commit(LEDGER.to_json())
    for _ in range(others):
        log.commit()
    assert table.state() == TableState(1 + others, LEDGER)


def test_a_table_is_made_with_its_first_ledger_in_the_same_commit(table: ArchiveTable, spark: Spark) -> None:
    table.create(LEDGER)
    ((statement, values),) = spark.ran
    assert statement.startswith("CREATE TABLE delta.`")
    assert "'millrace.topic' = 'orders'" in statement
    assert "PARTITIONED BY (date)" in statement
    assert list(values.values()) == [LEDGER.to_json()]
    assert spark.values == {}


def test_rows_and_ledger_are_one_commit_that_cannot_be_made_twice(table: ArchiveTable, log: Log) -> None:
    rows = Rows(log)
    table.append(rows.frame(), LEDGER)
    assert rows.chosen["userMetadata"] == LEDGER.to_json()
    assert (rows.chosen["txnAppId"], rows.chosen["txnVersion"]) == (LEDGER.application_id, "3")
    assert table.state().ledger == LEDGER


def test_a_second_archive_is_found_out(table: ArchiveTable, log: Log) -> None:
    others = Ledger(topic="orders", topic_id="id", sequence=3, first={0: 0}, next={0: 9})
    for rows in (
        Rows(log, error=RuntimeError("io.delta.exceptions.ConcurrentTransactionException: x")),
        # Delta passes over a number that it has seen, without a word.
        Rows(log, others=others),
    ):
        with pytest.raises(ConcurrentArchive, match="another process archives into"):
            table.append(rows.frame(), LEDGER)


def test_other_failures_of_a_write_are_told_as_they_are(table: ArchiveTable, log: Log) -> None:
    with pytest.raises(RuntimeError, match="disk full"):
        table.append(Rows(log, error=RuntimeError("disk full")).frame(), LEDGER)
