"""Databases as sources and sinks: each batch once, or not at all, in SQLite and in PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import JdbcSink
from millrace.pipeline.declared.run.drivers import options_with_driver
from millrace.pipeline.declared.run.frames import build_frames
from millrace.pipeline.declared.run.jdbc import JdbcFailed, Target
from tests.harness.millrace import MillraceProcess
from tests.harness.postgres import PASSWORD, USER, PostgresMissing, PostgresProcess
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.declared_support import run_once, send, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Database:
    """A database that is asked by its own client, not through Spark."""

    kind: str
    url: str
    query: Callable[[str], list[tuple[str, ...]]]

    def sink(self, table: str, **others: Any) -> JdbcSink:
        options = options_with_driver(self.url, {"user": USER, "password": PASSWORD})
        return JdbcSink(
            name="s", mark=Mark(1), view="v", url=self.url, table=table, options=options, **others
        )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, extra_jars: frozenset[str]
) -> Iterator[Database]:
    kind: str = request.param
    if kind not in extra_jars:
        pytest.skip(f"the JDBC driver of {kind} is not in the cache and cannot be fetched")
    if kind == "sqlite":
        path = tmp_path_factory.mktemp("sqlite") / "shop.db"
        yield Database(kind, f"jdbc:sqlite:{path}", lambda sql: _ask_sqlite(path, sql))
        return
    try:
        server = PostgresProcess()
    except PostgresMissing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield Database(kind, server.url, server.query)
    finally:
        server.end()


def _ask_sqlite(path: Path, sql: str) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(sql).fetchall()
        connection.commit()
    finally:
        connection.close()
    return [tuple(str(value) for value in row) for row in found]


PIPELINE = """\
pipeline: totals
bootstrap.servers: @bootstrap@
sources:
  orders: {topic: @orders@, format: json, schema: "customer_id int, cents bigint"}
  names: {jdbc: "@url@", table: customers, user: @user@, password: @password@}
  vip: {jdbc: "@url@", query: SELECT id FROM customers WHERE id > 1, user: @user@, password: @password@}
steps:
  known: |
    SELECT o.customer_id, n.name, o.cents, v.id IS NOT NULL AS is_vip
    FROM orders o JOIN names n ON o.customer_id = n.id LEFT JOIN vip v ON v.id = n.id
sinks:
  totals:
    sql: |
      SELECT customer_id, name, is_vip, count(*) AS orders, sum(cents) AS cents
      FROM known GROUP BY customer_id, name, is_vip
    mode: update
    jdbc: "@url@"
    user: @user@
    password: @password@
    table: totals
    key: customer_id
  all: {from: known, jdbc: "@url@", table: all_orders, user: @user@, password: @password@}
"""


def test_a_pipeline_joins_a_table_and_keeps_totals_in_another(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path, database: Database
) -> None:
    orders = make_topic(2, stem="orders")
    database.query("CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    database.query("INSERT INTO customers VALUES (0, 'Ada'), (1, 'Bo'), (2, 'Cy')")
    names = {"bootstrap": broker.bootstrap, "orders": orders, "url": database.url}
    path = write_file(tmp_path, PIPELINE, **names, user=USER, password=PASSWORD)
    send(broker.bootstrap, orders, [{"customer_id": n % 3, "cents": 10 * n} for n in range(30)])
    run_once(spark, path)
    send(broker.bootstrap, orders, [{"customer_id": 1, "cents": 1} for _ in range(5)])
    run_once(spark, path)

    found = database.query("SELECT customer_id, name, orders, cents FROM totals ORDER BY customer_id")
    assert found == [("0", "Ada", "10", "1350"), ("1", "Bo", "15", "1455"), ("2", "Cy", "10", "1550")]
    vips = database.query("SELECT customer_id FROM totals WHERE is_vip")
    assert vips == [("2",)]
    assert database.query("SELECT count(*), sum(cents) FROM all_orders") == [("35", "4355")]
    staging = "SELECT count(*) FROM " + (
        "sqlite_master WHERE type = 'table' AND name GLOB '*_millrace_*'"
        if database.kind == "sqlite"
        else "pg_tables WHERE tablename LIKE '%\\_millrace\\_%'"
    )
    assert database.query(staging) == [("0",)]


def test_a_batch_that_comes_again_or_late_changes_nothing(spark: SparkSession, database: Database) -> None:
    """As after a crash between the database's commit and Spark's, or of a driver that was thought dead."""
    target = Target(spark, database.sink("numbers"))
    for batch_id, numbers in ((0, [1, 2]), (0, [1, 2]), (1, [3]), (0, [1, 2])):
        frame = spark.createDataFrame([(number,) for number in numbers], "n int")
        target.write_batch(frame, "query", batch_id)
    assert database.query("SELECT n FROM numbers ORDER BY n") == [("1",), ("2",), ("3",)]
    # Another query, or the same one with a new checkpoint, counts from 0 again.
    target.write_batch(spark.createDataFrame([(4,)], "n int"), "other", 0)
    assert database.query("SELECT count(*) FROM numbers") == [("4",)]


def test_a_batch_that_fails_leaves_neither_rows_nor_its_number(
    spark: SparkSession, database: Database
) -> None:
    database.query("CREATE TABLE strict_numbers (n INTEGER PRIMARY KEY, word VARCHAR(9) NOT NULL)")
    target = Target(spark, database.sink("strict_numbers", key=("n",)))
    columns = "n int, word string"
    target.write_batch(spark.createDataFrame([(1, "one"), (2, "two")], columns), "strict", 0)
    bad = spark.createDataFrame([(1, "changed"), (3, None)], columns)
    with pytest.raises(Exception, match=r"(?i)null"):
        target.write_batch(bad, "strict", 1)
    kept = database.query("SELECT n, word FROM strict_numbers ORDER BY n")
    assert kept == [("1", "one"), ("2", "two")]
    # The same batch, mended: it was never there.
    good = spark.createDataFrame([(1, "changed"), (3, "three")], columns)
    target.write_batch(good, "strict", 1)
    found = database.query("SELECT n, word FROM strict_numbers ORDER BY n")
    assert found == [("1", "changed"), ("2", "two"), ("3", "three")]


def test_a_column_that_the_table_has_not_is_named(spark: SparkSession, database: Database) -> None:
    database.query("CREATE TABLE narrow (n INTEGER)")
    target = Target(spark, database.sink("narrow"))
    with pytest.raises(JdbcFailed, match=r"the table narrow has no column colour; it has n"):
        target.write_batch(spark.createDataFrame([(1, "red")], "n int, colour string"), "narrow", 0)
    assert database.query("SELECT count(*) FROM narrow") == [("0",)]


def test_a_database_without_a_driver_says_which_package_to_add(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "pipeline: p\nsources:\n  a: {jdbc: 'jdbc:mysql://127.0.0.1:1/x', table: t}\n"
        "sinks:\n  s: {from: a, console: true}\n"
    )
    pipeline, _ = load(write_file(tmp_path, text))
    mistakes = Mistakes()
    build_frames(spark, pipeline, mistakes)
    (mistake,) = mistakes.in_order()
    assert "there is no driver for mysql databases" in mistake.what
    assert "packages: [com.mysql:mysql-connector-j:VERSION]" in mistake.what
    url = "jdbc:nosuch:x"
    sink = JdbcSink(
        name="s", mark=Mark(1), view="v", url=url, table="t", options={"driver": "no.such.Driver"}
    )
    with pytest.raises(
        JdbcFailed, match=r"sinks\.s: there is no driver for nosuch databases: add the package"
    ):
        Target(spark, sink).write_batch(spark.createDataFrame([(1,)], "n int"), "q", 0)
