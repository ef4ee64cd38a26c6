"""Rows of a stream into a database table, each batch exactly once.

Spark's tasks write a batch into a staging table of its own; then one transaction on the driver moves the rows
to the target and writes the batch's number into a marker table. A batch that is done again finds its number
there and changes nothing. With a key, a row replaces the one that has its key, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from millrace.pipeline.declared.language.model import JdbcSink
from millrace.pipeline.declared.run.drivers import missing_driver
from millrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUERY_LENGTH_MAX: Final = 200


class JdbcFailed(PipelineError):
    """The database refused something; the message names the table."""


def batch_writer(sink: JdbcSink, query_name: str) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each batch once, however often it is called for it."""

    def write(batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        # The id of the query lives in the checkpoint: with a new checkpoint batches count from 0 again.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        Target(spark, sink).write_batch(batch, f"{query_name} {query_id}"[:_QUERY_LENGTH_MAX], batch_id)

    return write


def write_once(frame: DataFrame, sink: JdbcSink, job: str, version: int) -> None:
    """Write a frame that is no stream in one transaction, unless the table has this version already."""
    target = Target(frame.sparkSession, sink)
    later = target.last_batch(job)
    if later > version:
        raise JdbcFailed(
            f"sinks.{sink.name}: {sink.marker_table} says that a later run ({later}) than this one "
            f"({version}) has written here: are the clocks of the machines right?"
        )
    target.write_batch(frame, job, version)


class Target:
    """The table that a sink writes to, with its staging table and the marker table."""

    def __init__(self, spark: SparkSession, sink: JdbcSink) -> None:
        self._spark = spark
        self._sink = sink
        # Through this we reach java.sql.
        self._jvm: Final = cast("Any", spark._jvm)
        self._dialect = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(sink.url)
        self._staging = f"{sink.table}_millrace_{_suffix(sink.name)}"

    def last_batch(self, query: str) -> int:
        """The number of the last batch that is in the target; -1 if there is none."""
        with self._connection() as connection:
            self._make_marker_table(connection)
            return self._last_batch(connection, query)

    def write_batch(self, batch: DataFrame, query: str, batch_id: int) -> None:
        """Move one batch into the target unless its number is there already."""
        with self._connection() as connection:
            self._make_marker_table(connection)
            if self._last_batch(connection, query) >= batch_id:
                return
            if not self._exists(connection, self._sink.table):
                self._create(connection, self._sink.table, batch)
            if self._exists(connection, self._staging):
                # A driver that died has left it.
                self._execute(connection, f"DROP TABLE {self._staging}")
            self._create(connection, self._staging, batch)
            try:
                self._fill_staging(batch)
                with self._transaction(connection):
                    # We write the marker first: its lock keeps out a driver that was taken for dead.
                    self._mark(connection, query, batch_id)
                    self._move(connection)
            finally:
                self._execute(connection, f"DROP TABLE {self._staging}")

    def _move(self, connection: Any) -> None:
        target_columns = self._columns(connection, self._sink.table)
        staged_columns = self._columns(connection, self._staging)
        by_name = {name.casefold(): name for name in target_columns}
        missing = [name for name in staged_columns if name.casefold() not in by_name]
        if missing:
            raise JdbcFailed(
                f"sinks.{self._sink.name}: the table {self._sink.table} has no column {', '.join(missing)};"
                f" it has {', '.join(target_columns)}"
            )
        table, staging = self._sink.table, self._staging
        if self._sink.mode == "complete":
            self._execute(connection, f"DELETE FROM {table}")
        elif self._sink.key:
            same = " AND ".join(
                f"{staging}.{self._quoted(_found(name, staged_columns, self._sink))} ="
                f" {table}.{self._quoted(_found(name, target_columns, self._sink))}"
                for name in self._sink.key
            )
            self._execute(
                connection, f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {staging} WHERE {same})"
            )
        into = ", ".join(self._quoted(by_name[name.casefold()]) for name in staged_columns)
        from_ = ", ".join(self._quoted(name) for name in staged_columns)
        self._execute(connection, f"INSERT INTO {table} ({into}) SELECT {from_} FROM {staging}")

    def _create(self, connection: Any, table: str, frame: DataFrame) -> None:
        """Create a table for a frame: Spark's writer cannot in a database for which it has no dialect."""
        options = {key.casefold(): value for key, value in self._sink.options.items()}
        types = self._jvm.scala.Option.apply(options.get("createtablecolumntypes"))
        is_exact = self._spark.conf.get("spark.sql.caseSensitive", "false") == "true"
        utilities = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        columns = utilities.schemaString(self._dialect, frame._jdf.schema(), is_exact, types)
        self._execute(connection, f"CREATE TABLE {table} ({columns}) {options.get('createtableoptions', '')}")

    def _fill_staging(self, frame: DataFrame) -> None:
        writer = frame.write.format("jdbc").mode("append")
        writer.options(url=self._sink.url, dbtable=self._staging).options(**self._sink.options).save()

    def _make_marker_table(self, connection: Any) -> None:
        table = self._sink.marker_table
        if not self._exists(connection, table):
            self._execute(
                connection,
                f"CREATE TABLE {table} (query_name VARCHAR({_QUERY_LENGTH_MAX}) NOT NULL PRIMARY KEY,"
                " batch_id BIGINT NOT NULL)",
            )

    def _last_batch(self, connection: Any, query: str) -> int:
        sql = f"SELECT batch_id FROM {self._sink.marker_table} WHERE query_name = ?"
        with self._statement(connection, sql, (query,)) as statement:
            rows = statement.executeQuery()
            return int(rows.getLong(1)) if rows.next() else -1

    def _mark(self, connection: Any, query: str, batch_id: int) -> None:
        """Write the batch's number down; fail if this or a later one is there by now."""
        table = self._sink.marker_table
        update = f"UPDATE {table} SET batch_id = ? WHERE query_name = ? AND batch_id < ?"
        with self._statement(connection, update, (batch_id, query, batch_id)) as statement:
            if statement.executeUpdate() == 1:
                return
        insert = f"INSERT INTO {table} (batch_id, query_name) VALUES (?, ?)"
        with self._statement(connection, insert, (batch_id, query)) as statement:
            statement.executeUpdate()

    def _exists(self, connection: Any, table: str) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            with self._statement(connection, self._dialect.getTableExistsQuery(table)) as statement:
                statement.executeQuery()
        except Py4JJavaError:
            return False
        return True

    def _columns(self, connection: Any, table: str) -> list[str]:
        with self._statement(connection, self._dialect.getSchemaQuery(table)) as statement:
            described = statement.executeQuery().getMetaData()
            return [str(described.getColumnLabel(number + 1)) for number in range(described.getColumnCount())]

    def _execute(self, connection: Any, sql: str) -> None:
        with self._statement(connection, sql) as statement:
            statement.executeUpdate()

    @contextmanager
    def _statement(self, connection: Any, sql: str, values: Sequence[str | int] = ()) -> Iterator[Any]:
        statement = connection.prepareStatement(sql)
        try:
            for position, value in enumerate(values):
                if isinstance(value, int):
                    statement.setLong(position + 1, value)
                else:
                    statement.setString(position + 1, value)
            yield statement
        finally:
            statement.close()

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        connection.setAutoCommit(False)
        try:
            yield
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.setAutoCommit(True)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        connection = self._connect()
        try:
            yield connection
        finally:
            connection.close()

    def _connect(self) -> Any:
        from py4j.protocol import Py4JJavaError

        options = self._sink.options
        jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
        properties = self._jvm.java.util.Properties()
        for key, value in _connection_properties(options).items():
            properties.setProperty(key, value)
        try:
            if "driver" in options:
                # A driver that came with a package is only known to Spark's own class loader.
                jdbc.DriverRegistry.register(options["driver"])
            return self._jvm.java.sql.DriverManager.getConnection(self._sink.url, properties)
        except Py4JJavaError as error:
            missing = missing_driver(error, self._sink.url)
            if missing is None:
                raise
            raise JdbcFailed(f"sinks.{self._sink.name}: {missing}") from error

    def _quoted(self, column: str) -> str:
        return str(self._dialect.quoteIdentifier(column))


# Options for Spark's writer, not for the database.
_SPARK_OPTIONS: Final = frozenset(
    {"driver", "batchsize", "numpartitions", "createtableoptions", "createtablecolumntypes", "truncate"}
    | {"isolationlevel", "querytimeout", "sessioninitstatement", "fetchsize"}
)


def _connection_properties(options: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key.casefold() not in _SPARK_OPTIONS}


def _found(name: str, columns: Sequence[str], sink: JdbcSink) -> str:
    for column in columns:
        if column.casefold() == name.casefold():
            return column
    raise JdbcFailed(f"sinks.{sink.name}: the key {name!r} is no column; there are {', '.join(columns)}")


def _suffix(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
