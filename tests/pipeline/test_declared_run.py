"""Declared pipelines on a real Spark against a real broker: what a file says comes out, exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace.client.errors import ConnectionFailed
from millrace.pipeline.declared.check.builtin_functions import BUILTIN_FUNCTIONS
from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.check.deep import examine_deeply, plans
from millrace.pipeline.declared.language.model import JdbcSink, Sink, TopicSource
from millrace.pipeline.declared.run import jdbc, sinks
from millrace.pipeline.declared.run.jdbc import Target
from millrace.pipeline.declared.run.retries import RetryLimits
from millrace.pipeline.declared.run.runner import QueryFailed, Runner
from millrace.pipeline.declared.run.state import state_directory
from millrace.pipeline.progress import ProgressBoard, QueryProgress
from tests.harness.millrace import MILLRACE, MillraceProcess, run_millrace
from tests.harness.topics import create_topic
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.declared_support import DEADLINE_S, received, run_once, send, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# On a machine that does much else at the same time, Spark alone may take a minute to start.
pytestmark = pytest.mark.timeout(900)

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00Z


def order(number: int, *, minute: int, customer: int = 1, cents: int = 100) -> dict[str, Any]:
    at = f"2026-01-31T12:{minute:02d}:{number % 60:02d}Z"
    return {"order_id": number, "customer_id": customer, "cents": cents, "at": at}


ORDERS = """\
pipeline: orders
bootstrap.servers: @bootstrap@
functions:
  @function@: {call: @module@:shout, returns: string}
sources:
  orders:
    topic: @orders@
    format: json
    schema: order_id bigint, customer_id int, cents bigint, at timestamp
    dead_letters: @dead@
    watermark: at 1 minute
  customers:
    files: customers.csv
    schema: customer_id int, country string
    options: {header: true}
steps:
  real_orders:
    deduplicate: order_id
    sql: SELECT order_id, customer_id, cents, at FROM orders WHERE cents > 0
  known: |
    SELECT o.*, @function@(c.country) AS country
    FROM real_orders o JOIN customers c ON o.customer_id = c.customer_id
  revenue: |
    SELECT date_format(window.start, 'HH:mm') AS minute, country, count(*) AS orders, sum(cents) AS cents
    FROM known
    GROUP BY window(at, '1 minute'), country
sinks:
  lake: {from: known, delta: lake, partition_by: country}
  revenue: {from: revenue, topic: @revenue@, key: country, format: json}
"""


def test_join_window_watermark_and_deduplication_come_out_exactly_once(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Two runs of one file: the second goes on where the first ended."""
    orders, revenue, dead = (make_topic(2, stem=stem) for stem in ("orders", "revenue", "dead"))
    module = f"functions_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text("def shout(text):\n    return text.upper()\n")
    (tmp_path / "customers.csv").write_text("customer_id,country\n1,fi\n2,nl\n")
    names = {"bootstrap": broker.bootstrap, "orders": orders, "revenue": revenue, "dead": dead}
    path = write_file(tmp_path, ORDERS, module=module, function="shout", **names)

    first = [order(n, minute=0, customer=1 + n % 2) for n in range(20)]
    send(broker.bootstrap, orders, [*first, *first[:5], b"{broken", order(98, minute=0, cents=-1)])
    run_once(spark, path)
    send(broker.bootstrap, orders, [*first[:3], order(30, minute=5), order(31, minute=9)])
    board = run_once(spark, path)

    table = spark.read.format("delta").load(str(tmp_path / "lake")).collect()
    assert Counter(row["order_id"] for row in table) == Counter([*range(20), 30, 31])
    assert {row["country"] for row in table} == {"FI", "NL"}
    sent = received(broker.bootstrap, revenue, at_least=3)
    windows = [json.loads(message.value()) for message in sent]
    # The last window is still open: its watermark has not passed.
    assert sorted((each["minute"], each["country"], each["orders"]) for each in windows) == [
        ("12:00", "FI", 10),
        ("12:00", "NL", 10),
        ("12:05", "FI", 1),
    ]
    assert {message.key() for message in sent} == {b"FI", b"NL"}
    (letter,) = received(broker.bootstrap, dead, at_least=1)
    assert letter.value() == b"{broken"
    assert any(name.endswith("reason") and b"JSON" in value for name, value in letter.headers())
    queries = {query.name: query for query in board.snapshot()}
    assert set(queries) == {"lake", "revenue", "orders.dead_letters"}
    assert queries["lake"].rows == 5
    assert queries["lake"].lag == 0


TOTALS = """\
pipeline: totals
bootstrap.servers: @bootstrap@
sources:
  orders:
    topic: @orders@
    format: json
    schema: order_id bigint, customer_id int, cents bigint, at timestamp
sinks:
  database:
    sql: SELECT customer_id, count(*) AS orders, sum(cents) AS cents FROM orders GROUP BY customer_id
    mode: update
    jdbc: jdbc:derby:memory:@database@;create=true
    table: totals
    key: customer_id
  changes:
    sql: SELECT customer_id, count(*) AS orders FROM orders GROUP BY customer_id
    mode: update
    topic: @changes@
    key: customer_id
"""


def test_totals_are_kept_in_a_database_and_changes_sent_exactly_once(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    orders, changes = make_topic(2, stem="orders"), make_topic(1, stem="changes")
    database = f"d{tmp_path.name.replace('-', '')}"
    path = write_file(
        tmp_path, TOTALS, bootstrap=broker.bootstrap, orders=orders, changes=changes, database=database
    )
    send(broker.bootstrap, orders, [order(n, minute=0, customer=n % 3) for n in range(30)])
    run_once(spark, path)
    send(broker.bootstrap, orders, [order(n, minute=1, customer=1) for n in range(30, 35)])
    run_once(spark, path)

    url = f"jdbc:derby:memory:{database}"
    rows = spark.read.format("jdbc").options(url=url, dbtable="totals").load().collect()
    assert sorted((row["customer_id"], row["orders"], row["cents"]) for row in rows) == [
        (0, 10, 1000),
        (1, 15, 1500),
        (2, 10, 1000),
    ]
    sent = [json.loads(message.value()) for message in received(broker.bootstrap, changes, at_least=4)]
    assert Counter((each["customer_id"], each["orders"]) for each in sent) == Counter(
        [(0, 10), (1, 10), (2, 10), (1, 15)]
    )


def test_a_batch_that_comes_again_changes_nothing_in_a_database(spark: SparkSession, tmp_path: Path) -> None:
    """As after a crash between the database's commit and Spark's: the batch is done again."""
    url = f"jdbc:derby:memory:again{tmp_path.name.replace('-', '')};create=true"
    from millrace.pipeline.declared.language.mistakes import Mark

    sink = JdbcSink(name="s", mark=Mark(1), view="v", url=url, table="numbers")
    target = Target(spark, sink)
    for batch_id, numbers in ((0, [1, 2]), (0, [1, 2]), (1, [3]), (0, [1, 2])):
        frame = spark.createDataFrame([(number,) for number in numbers], "n int")
        target.write_batch(frame, "query", batch_id)
    rows = spark.read.format("jdbc").options(url=url, dbtable="numbers").load().collect()
    assert sorted(row["n"] for row in rows) == [1, 2, 3]


def test_a_run_older_than_what_a_database_holds_is_refused_and_not_taken_for_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The marker of a run is the time of its start. If a clock went back, the rows of the next run would be
    taken for written already, without a word."""
    from millrace.pipeline.declared.language.mistakes import Mark

    url = f"jdbc:derby:memory:clock{tmp_path.name.replace('-', '')};create=true"
    sink = JdbcSink(name="s", mark=Mark(1), view="v", url=url, table="numbers")

    def write(job: str, version: int, number: int) -> None:
        jdbc.write_once(spark.createDataFrame([(number,)], "n int"), sink, job, version)

    write("job", 5, 1)
    write("job", 5, 1)
    with pytest.raises(jdbc.JdbcFailed, match=r"a later run \(5\) than this one \(4\)"):
        write("job", 4, 2)
    write("another", 4, 3)
    write("job", 6, 4)
    rows = spark.read.format("jdbc").options(url=url, dbtable="numbers").load().collect()
    assert sorted(row["n"] for row in rows) == [1, 3, 4]


COPY = """\
pipeline: copy
bootstrap.servers: @bootstrap@
sources:
  people: {files: people.jsonl, schema: "id bigint, name string"}
steps:
  adults: SELECT id, upper(name) AS name FROM people WHERE id < 3
sinks:
  people: {from: adults, topic: @people@, key: id}
  files: {from: adults, parquet: copy}
"""


def test_what_is_no_stream_is_written_once(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    people = make_topic(1, stem="people")
    lines = [json.dumps({"id": number, "name": f"n{number}"}) for number in range(5)]
    (tmp_path / "people.jsonl").write_text("\n".join(lines))
    run_once(spark, write_file(tmp_path, COPY, bootstrap=broker.bootstrap, people=people))
    sent = received(broker.bootstrap, people, at_least=3)
    assert {(message.key(), message.value()) for message in sent} == {
        (
            str(number).encode(),
            json.dumps({"id": number, "name": f"N{number}"}, separators=(",", ":")).encode(),
        )
        for number in range(3)
    }
    assert spark.read.parquet(str(tmp_path / "copy")).count() == 3


TWICE = """\
pipeline: twice
bootstrap.servers: @bootstrap@
sources:
  people: {files: people.jsonl, schema: "id bigint, name string"}
sinks:
  people: {from: people, topic: @people@, key: id}
  database: {from: people, jdbc: "jdbc:derby:memory:@database@;create=true", table: people}
"""


def test_a_sink_that_is_written_once_and_tried_again_holds_no_row_twice(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is written, but whoever wrote it does not hear of that. The next run writes all again."""
    people, database = make_topic(1, stem="people"), f"w{tmp_path.name.replace('-', '')}"
    (tmp_path / "people.jsonl").write_text("\n".join(json.dumps({"id": n, "name": "n"}) for n in range(3)))
    path = write_file(tmp_path, TWICE, bootstrap=broker.bootstrap, people=people, database=database)
    write, tries = sinks.write_once, Counter[str]()

    def write_and_forget(frame: DataFrame, sink: Sink, **names: Any) -> None:
        write(frame, sink, **names)
        tries[sink.name] += 1
        if tries[sink.name] == 1:
            raise ConnectionFailed("the answer was lost")

    monkeypatch.setattr(sinks, "write_once", write_and_forget)
    for runs in (1, 2):
        run_once(spark, path)
        assert len(received(broker.bootstrap, people, at_least=3 * runs)) == 3 * runs
        url = f"jdbc:derby:memory:{database}"
        assert spark.read.format("jdbc").options(url=url, dbtable="people").load().count() == 3 * runs
    assert tries == {"people": 3, "database": 3}


def test_dead_letters_of_what_is_no_stream_are_tried_again_and_there_once(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, dead = make_topic(1, stem="orders"), make_topic(1, stem="dead")
    send(broker.bootstrap, orders, [{"n": 1}, b"no JSON"])
    text = (
        f"pipeline: letters\nbootstrap.servers: {broker.bootstrap}\n"
        f"sources: {{a: {{topic: {orders}, stream: false, format: json, schema: n bigint, "
        f"dead_letters: {dead}}}}}\nsinks: {{out: {{from: a, parquet: out}}}}\n"
    )
    write, tries = sinks.write_dead_letters_once, Counter[str]()

    def write_and_forget(frame: DataFrame, source: TopicSource, **names: Any) -> None:
        write(frame, source, **names)
        tries[source.name] += 1
        if tries[source.name] == 1:
            raise ConnectionFailed("the answer was lost")

    monkeypatch.setattr(sinks, "write_dead_letters_once", write_and_forget)
    run_once(spark, write_file(tmp_path, text))
    assert tries == {"a": 2}
    assert len(received(broker.bootstrap, dead, at_least=1)) == 1


def test_a_stop_before_a_sink_is_written_is_no_failure_of_it(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people = make_topic(1, stem="people")
    (tmp_path / "people.jsonl").write_text(json.dumps({"id": 1, "name": "n"}))
    path = write_file(tmp_path, COPY, bootstrap=broker.bootstrap, people=people)
    pipeline, _ = load(path)
    state, board = state_directory(path, pipeline.name), ProgressBoard(pipeline.name)
    monkeypatch.setattr(sinks, "write_once", lambda *_, **__: state.ask_to_stop())
    runner = Runner(pipeline=pipeline, state=state, board=board, say=lambda _line: None, master="local")
    with state.held(pipeline.name):
        assert runner.run(lambda: spark) in ("stopped", "finished")
    assert not (tmp_path / "copy").exists()


AVRO = """\
pipeline: avro
bootstrap.servers: @bootstrap@
sources:
  people: {files: people.jsonl, schema: "id bigint, name string"}
sinks:
  people: {from: people, topic: @people@, key: id, format: avro, schema_file: person.avsc}
"""
BACK = """\
pipeline: back
bootstrap.servers: @bootstrap@
sources:
  people: {topic: @people@, stream: false, format: avro, schema_file: person.avsc}
sinks:
  files: {sql: "SELECT id, name, CAST(_key AS STRING) AS k, _error FROM people", parquet: back}
"""


def test_payloads_go_out_and_come_back_by_their_schema(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    people = make_topic(1, stem="people")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    (tmp_path / "person.avsc").write_text(json.dumps({"type": "record", "name": "P", "fields": fields}))
    (tmp_path / "people.jsonl").write_text('{"id": 1, "name": "a"}\n{"id": 2}\n')
    run_once(spark, write_file(tmp_path, AVRO, bootstrap=broker.bootstrap, people=people))
    received(broker.bootstrap, people, at_least=2)
    send(broker.bootstrap, people, [b"\xff"])
    run_once(spark, write_file(tmp_path, BACK, bootstrap=broker.bootstrap, people=people))
    rows = spark.read.parquet(str(tmp_path / "back")).collect()
    parsed = {(row["id"], row["name"], row["k"]) for row in rows if row["_error"] is None}
    assert parsed == {(1, "a", "1"), (2, None, "2")}
    assert ["not Avro" in row["_error"] for row in rows if row["_error"] is not None] == [True]


DEEP = """\
pipeline: deep
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, cents bigint, at timestamp
    watermark: at 1 minute
steps:
  typo: |
    SELECT id,
           cent
    FROM orders
  broken: SELECT id FROM orders WHERE id >
  unknown: SELECT frobnicate(id) FROM orders
  fine: SELECT id, at FROM orders
sinks:
  a: {from: fine, topic: out, key: idd}
  b: {from: fine, delta: lake, partition_by: day}
  c: {sql: SELECT * FROM typo, console: true}
  d: {sql: "SELECT id, row_number() OVER (ORDER BY at) AS place FROM fine", console: true}
"""


def test_spark_finds_what_only_it_can_know_with_the_line(spark: SparkSession, tmp_path: Path) -> None:
    path = write_file(tmp_path, DEEP)
    pipeline, _ = load(path)
    found = {each.mark.line: each.text() for each in examine_deeply(spark, pipeline, tmp_path / "scratch")}
    assert "cent" in found[11]
    assert "syntax error" in found[13].lower()
    assert "frobnicate" in found[14]
    assert "has no column 'idd'; did you mean 'id'?" in found[17]
    assert "partition_by: fine has no column 'day'" in found[18]
    assert "not supported" in found[20]
    assert set(found) == {11, 13, 14, 17, 18, 20}


def test_sparks_plan_can_be_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "pipeline: p\nsources: {orders: {topic: orders}}\nsinks: {s: {from: orders, topic: t, format: raw}}\n"
    )
    pipeline, _ = load(write_file(tmp_path, text))
    assert "Physical Plan" in plans(spark, pipeline, tmp_path, "simple")["s"]


@pytest.mark.parametrize("mode", ["simple", "extended", "formatted"])
def test_a_stream_through_steps_is_explained_as_the_stream_that_it_is(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """In a query's text a table is only a name: Spark took it for a batch, and refused to plan one."""
    text = (
        "pipeline: p\nsources: {orders: {topic: orders, watermark: timestamp 1 minute}}\n"
        "steps:\n  counted: SELECT count(*) AS n FROM orders GROUP BY window(timestamp, '1 minute')\n"
        "sinks: {s: {sql: SELECT CAST(n AS string) AS value FROM counted, topic: t, format: raw}}\n"
    )
    pipeline, _ = load(write_file(tmp_path, text))
    plan = plans(spark, pipeline, tmp_path, mode)["s"]
    assert "Physical Plan" in plan
    assert "StateStoreSave" in plan


def test_the_list_of_sparks_functions_is_sparks_own(spark: SparkSession) -> None:
    names = {str(row[0]).casefold() for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    own = {name for name in names if name.isidentifier()}
    assert own == BUILTIN_FUNCTIONS, (own - BUILTIN_FUNCTIONS, BUILTIN_FUNCTIONS - own)


def test_a_function_that_only_this_spark_has_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.pipeline.declared.check.builtin_functions.BUILTIN_FUNCTIONS", frozenset())
    text = (
        "pipeline: p\nfunctions: {mask: {call: tools:mask, returns: string}}\n"
        "sources: {orders: {topic: orders}}\nsinks: {s: {from: orders, topic: t, format: raw}}\n"
    )
    (tmp_path / "tools.py").write_text("def mask(text):\n    return text\n")
    pipeline, _ = load(write_file(tmp_path, text))
    (mistake,) = examine_deeply(spark, pipeline, tmp_path)
    assert "this Spark has a function mask of its own" in mistake.what


OUTAGE = """\
pipeline: p
bootstrap.servers: @bootstrap@
sources: {a: {topic: in, format: text, options: {request.timeout.ms: 1000}}}
sinks: {out: {from: a, parquet: out}}
"""


def test_a_pipeline_waits_for_its_brokers_to_come_back_and_goes_on(
    spark: SparkSession, own_broker: MillraceProcess, tmp_path: Path
) -> None:
    """It ended after a minute of outage. Here the broker is gone until the query has failed of it."""
    create_topic(own_broker.bootstrap, "in")
    send(own_broker.bootstrap, "in", [b"before"])
    path = write_file(tmp_path, OUTAGE, bootstrap=own_broker.bootstrap)
    pipeline, _ = load(path)
    state, board = state_directory(path, pipeline.name), ProgressBoard(pipeline.name)
    said: list[str] = []
    first_run: list[str] = []

    def watch(query: QueryProgress) -> None:
        """The broker goes when the first run has read a row; what the second one reads ends the test."""
        if query.rows and not first_run:
            first_run.append(query.run_id)
            own_broker.kill()
        elif query.rows and query.run_id not in first_run:
            state.ask_to_stop()

    board.watch(watch)

    def say(line: str) -> None:
        said.append(line)
        if "it goes on when a broker answers" in line:
            own_broker.start()
            send(own_broker.bootstrap, "in", [b"after"])

    limits = RetryLimits(retries=0, outage_timeout_s=DEADLINE_S)
    runner = Runner(pipeline=pipeline, state=state, board=board, say=say, master="local", limits=limits)
    with state.held(pipeline.name):
        assert runner.run(lambda: spark) == "stopped", (said, board.snapshot())
    assert any(line.startswith("out: no broker answers at") for line in said), said
    assert "out: started again" in said
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["value"] for row in rows) == ["after", "before"]


def test_a_sink_that_fails_is_tried_again_while_the_others_go_on(
    spark: SparkSession, broker: MillraceProcess, topic: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    good = make_topic(2)
    text = (
        f"pipeline: p\nbootstrap.servers: {broker.bootstrap}\n"
        f"sources: {{a: {{topic: {topic}, format: text}}}}\n"
        "sinks:\n  bad: {sql: SELECT raise_error(value) AS x FROM a, parquet: out}\n"
        f"  good: {{from: a, topic: {good}, format: text}}\n"
    )
    path = write_file(tmp_path, text)
    pipeline, _ = load(path)
    state, board = state_directory(path, pipeline.name), ProgressBoard(pipeline.name)
    send(broker.bootstrap, topic, [b"this is why"])
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "bad: started again" in line:
            send(broker.bootstrap, topic, [b"another"])

    # The good one is at work after the bad one has failed, and is what ends the run.
    board.watch(lambda query: state.ask_to_stop() if (query.name, query.rows) == ("good", 2) else None)
    limits = RetryLimits(retries=1)
    runner = Runner(pipeline=pipeline, state=state, board=board, say=say, master="local", limits=limits)
    with (
        state.held(pipeline.name),
        pytest.raises(QueryFailed, match=r"^bad: .*this is why \(1 of 2 sinks stopped well\)$"),
    ):
        runner.run(lambda: spark)
    assert any("this is why; try 1 of 1 follows in 1 s" in line for line in said), said
    assert len(received(broker.bootstrap, good, at_least=2)) == 2
    # What is said and shown is one line; the trace is in a file.
    assert not any("\tat " in line for line in said)
    assert not any("\tat " in (query.error or "") for query in board.snapshot())
    assert "\tat org.apache.spark" in state.trace_path.read_text()
    status = state.status()
    assert status is not None
    assert status["state"] == "failed"


def test_a_query_that_fails_ends_the_run_with_one_line(
    spark: SparkSession, broker: MillraceProcess, topic: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    text = (
        f"pipeline: p\nbootstrap.servers: {broker.bootstrap}\n"
        f"sources: {{a: {{topic: {topic}, format: text}}}}\n"
        "sinks:\n  bad: {sql: SELECT raise_error(value) AS x FROM a, parquet: out}\n"
        f"  good: {{from: a, topic: {make_topic()}, format: text}}\n"
    )
    path = write_file(tmp_path, text)
    send(broker.bootstrap, topic, [b"this is why"])
    with pytest.raises(QueryFailed, match=r"bad: .*this is why"):
        run_once(spark, path, RetryLimits(retries=0))
    status = state_directory(path, "p").status()
    assert status is not None
    assert status["state"] == "failed"
    assert "this is why" in status["error"]
    assert "\n\tat " not in status["error"]
    # Where it does not bury the line, and only there.
    kept = state_directory(path, "p").trace_path.read_text(encoding="utf-8")
    assert "\tat org.apache.spark" in kept
    assert " bad: " in kept


def test_the_command_reads_from_the_servers_it_is_told_and_shows_traces_if_asked(
    broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    text = (
        "pipeline: p\nbootstrap.servers: 127.0.0.1:1\nspark: {spark.driver.memory: 1g}\n"
        f"sources: {{a: {{topic: {topic}, format: text}}}}\n"
        "sinks: {bad: {sql: SELECT raise_error(value) AS x FROM a, parquet: out}}\n"
    )
    path = write_file(tmp_path, text)
    send(broker.bootstrap, topic, [b"this is why"])
    words = ("-b", broker.bootstrap, "--once", "--retries", "0", "--outage-timeout", "60", "--trace")
    ended = run_millrace("pipeline", "run", str(path), *words, timeout_s=DEADLINE_S)
    assert ended.returncode == 1, ended.stderr
    assert "no broker answers" not in ended.stderr
    assert "\tat org.apache.spark" in ended.stderr
    assert "this is why" in ended.stderr.splitlines()[-1]
    assert not state_directory(path, "p").trace_path.exists()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[MillraceProcess]:
    """One that a test may take away."""
    process = MillraceProcess(tmp_path / "broker")
    process.start()
    yield process
    process.end()


PART = 3_000
NUMBERS = """\
pipeline: numbers
bootstrap.servers: @bootstrap@
spark: {spark.sql.shuffle.partitions: 2, spark.driver.memory: 1g}
sources:
  numbers:
    topic: @numbers@
    format: json
    schema: n bigint
    options: {maxOffsetsPerTrigger: 1000}
sinks:
  doubled: {sql: "SELECT n, 2 * n AS twice FROM numbers", topic: @doubled@, key: n}
"""


@pytest.fixture
def command_environment() -> dict[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1"}


def start_run(path: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    with (path.parent / "run.log").open("ab") as log:
        return subprocess.Popen(
            [MILLRACE, "pipeline", "run", str(path), "--master", "local[2]", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def wait_for_batch(path: Path, process: subprocess.Popen[bytes], batch: int) -> dict[str, Any]:
    """Until `millrace pipeline status` says that so many batches are done."""
    state = state_directory(path, "numbers")
    deadline = time.monotonic() + DEADLINE_S
    while True:
        status = state.status()
        if status is not None and status["pid"] == process.pid and status["queries"]:
            (query,) = status["queries"]
            if query["batch"] is not None and query["batch"] >= batch:
                return status
        assert process.poll() is None, (path.parent / "run.log").read_text()[-3000:]
        assert time.monotonic() < deadline, (path.parent / "run.log").read_text()[-3000:]
        time.sleep(0.05)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """The command, the JVM and the workers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def numbers_of(bootstrap: str, topic: str, *, at_least: int) -> Counter[int]:
    sent = received(bootstrap, topic, at_least=at_least)
    return Counter(json.loads(message.value())["n"] for message in sent)


def send_numbers(bootstrap: str, topic: str, part: int) -> None:
    send(bootstrap, topic, ({"n": number} for number in range(part * PART, (part + 1) * PART)))


def test_a_stop_lets_the_batch_end_and_the_next_run_goes_on(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    numbers, doubled = make_topic(2, stem="numbers"), make_topic(2, stem="doubled")
    path = write_file(tmp_path, NUMBERS, bootstrap=broker.bootstrap, numbers=numbers, doubled=doubled)
    send_numbers(broker.bootstrap, numbers, 0)
    pipeline, _ = load(path)
    state, board = state_directory(path, pipeline.name), ProgressBoard(pipeline.name)
    # As `millrace pipeline stop` does from another terminal, as soon as the first batch is done.
    board.watch(lambda query: state.ask_to_stop() if query.batch is not None else None)
    runner = Runner(pipeline=pipeline, state=state, board=board, say=lambda _text: None, master="local")
    with state.held(pipeline.name):
        assert runner.run(lambda: spark) == "stopped"
    assert board.snapshot()[0].error is None
    send_numbers(broker.bootstrap, numbers, 1)
    run_once(spark, path)
    assert numbers_of(broker.bootstrap, doubled, at_least=2 * PART) == Counter(range(2 * PART))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill_9_restart_status_and_stop_leave_every_row_exactly_once(
    broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path, command_environment: dict[str, str]
) -> None:
    numbers, doubled = make_topic(2, stem="numbers"), make_topic(2, stem="doubled")
    path = write_file(tmp_path, NUMBERS, bootstrap=broker.bootstrap, numbers=numbers, doubled=doubled)
    send_numbers(broker.bootstrap, numbers, 0)
    process = start_run(path, command_environment)
    try:
        wait_for_batch(path, process, 0)
        # The whole group at once: no part of it lives to tidy up.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        assert "numbers: died" in run_millrace("pipeline", "status", str(path)).stdout

        # The next run finds rows of its own, however fast the one before was.
        send_numbers(broker.bootstrap, numbers, 1)
        process = start_run(path, command_environment, "--metrics", "0")
        status = wait_for_batch(path, process, 1)
        refused = run_millrace("pipeline", "run", str(path))
        assert (refused.returncode, "runs already, as process" in refused.stderr) == (1, True)
        with urllib.request.urlopen(status["metrics"], timeout=60) as answer:
            assert b'millrace_pipeline_rows_total{pipeline="numbers",query="doubled"}' in answer.read()
        shown = run_millrace("pipeline", "status", str(path), "--json")
        assert json.loads(shown.stdout)["state"] == "running"
        found = numbers_of(broker.bootstrap, doubled, at_least=2 * PART)
        stopped = run_millrace("pipeline", "stop", str(path), timeout_s=DEADLINE_S)
        assert (stopped.returncode, stopped.stdout) == (0, "stopped numbers\n")
        assert process.wait(DEADLINE_S) == 0
    finally:
        end_group(process)
    assert found == Counter(range(2 * PART))
    assert numbers_of(broker.bootstrap, doubled, at_least=2 * PART) == found
    assert "numbers: stopped" in (tmp_path / "run.log").read_text()
