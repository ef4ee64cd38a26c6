"""Analytics on a real topic: figures are exact, a second run counts only what is new, reports are written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.cli.main import CLI
from millrace.client.broker_client import BrokerClient
from millrace.pipeline.analytics import lag, table
from millrace.pipeline.analytics.measurement import Measure
from millrace.pipeline.analytics.run import AnalyticsOptions, measure_topics
from millrace.pipeline.analytics.summary import TopicSummary
from millrace.pipeline.errors import PipelineError
from tests.harness.millrace import run_millrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.millrace import MillraceProcess
    from tests.pipeline.conftest import MakeTopic

SENT_HEADER = "sent-at"


def send(bootstrap: str, topic: str, count: int, *, partition: int, key: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        sent_ms = str(time.time_ns() // 1_000_000 - 100)
        producer.produce(
            topic, value=b"v" * size, key=key, partition=partition, headers=[(SENT_HEADER, sent_ms)]
        )
    assert producer.flush(60) == 0


def measured(
    spark: SparkSession, broker: MillraceProcess, topic: str, path: Path, run_ms: int, **more: object
) -> TopicSummary:
    options = AnalyticsOptions(
        topics=[topic],
        table=str(path),
        source_options={"bootstrap.servers": broker.bootstrap},
        latency_header=SENT_HEADER,
        **more,  # type: ignore[arg-type]
    )
    with BrokerClient(broker.bootstrap) as client:
        found = lag.sample(client, run_ms, [topic], lag.list_groups(client))
        _, (summary,) = measure_topics(spark, client, options, run_ms=run_ms, lag=found)
    return summary


def test_figures_are_exact_and_a_second_run_goes_on(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=3, configs={"message.timestamp.type": "LogAppendTime"}, stem="measured")
    send(broker.bootstrap, topic, 900, partition=0, key="busy", size=96)
    send(broker.bootstrap, topic, 100, partition=1, key="calm", size=996)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-readers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 400)], asynchronous=False)
    consumer.close()

    first = measured(spark, broker, topic, tmp_path / "table", run_ms=1_000)
    assert first.messages == 1_000
    assert first.bytes == 900 * 100 + 100 * 1_000
    assert [each.messages for each in first.partitions] == [900, 100, 0]
    assert [each.partition for each in first.hot_partitions] == [0]
    assert [(each.key, each.messages, each.partitions) for each in first.keys] == [
        ("busy", 900, (0,)),
        ("calm", 100, (1,)),
    ]
    assert first.distinct_keys == 2
    assert first.sizes is not None
    assert first.sizes.largest == 1_000
    assert first.sizes.p50 == pytest.approx(100, rel=0.1)
    # Sent "100 ms ago" by the header, stored a little later; how much later depends on the machine.
    assert first.latencies is not None
    assert sum(first.latencies.counts.values()) == 1_000
    assert first.latencies.p50 is not None
    assert first.latencies.p50 >= 90
    assert first.lag[f"{topic}-readers"][-1][1] == 500

    send(broker.bootstrap, topic, 50, partition=2, key="late", size=96)
    second = measured(spark, broker, topic, tmp_path / "table", run_ms=2_000)
    assert second.messages == 1_050
    assert second.runs == 2
    rows = table.read(spark, str(tmp_path / "table"), [topic])
    ours = [each for each in rows if each.run_ms == 2_000 and each.measure is Measure.MESSAGES]
    assert sum(each.value for each in ours) == 50


def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, broker: MillraceProcess, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="there is no topic nowhere"):
        measured(spark, broker, "nowhere", tmp_path / "table", run_ms=1)


def test_the_command_measures_and_writes_both_reports(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process and on the session of all tests: a Spark of its own would take longer than all else."""
    monkeypatch.setattr("millrace.pipeline.spark.session.make_session", lambda **_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    topic = make_topic(partitions=2, stem="reported")
    send(broker.bootstrap, topic, 300, partition=1, key="key", size=50)
    words = ["pipeline", "analytics", topic, "--into", str(tmp_path / "table"), "-b", broker.bootstrap]
    words += ["--report", str(tmp_path / "report.html"), "--report", str(tmp_path / "report.png"), "--json"]
    answer = CliRunner().invoke(CLI, words, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["messages"] == 300
    assert found["hot_partitions"] == [1]
    assert topic in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_names_what_is_wrong_before_it_starts_spark(
    broker: MillraceProcess, tmp_path: Path
) -> None:
    answer = run_millrace("pipeline", "analytics", "nowhere", "-b", broker.bootstrap)
    assert answer.returncode == 1
    assert "there is no topic nowhere" in answer.stderr
    answer = run_millrace("pipeline", "analytics", "x", "--report", "x.pdf", "-b", broker.bootstrap)
    assert answer.returncode == 2
    assert "a report is .html or .png" in answer.stderr
