"""The sink's protocol without Spark: what a driver or a task that dies at a bad moment leaves behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import BrokerRefused, InvalidOption
from millrace.client.topic_creation import TopicMissing
from millrace.client.transactional import (
    Fenced,
    RecordTooLarge,
    TaskProducer,
    end_transaction,
    init_producer,
)
from millrace.pipeline.sink.commit import (
    Job,
    MarkersMissing,
    RowsChanged,
    StaleEpoch,
    TaskOutcome,
    TasksChanged,
    _announce,
    abort_job,
    commit_job,
    task_id,
)
from millrace.pipeline.sink.data_sink import _producer, _write_rows
from millrace.pipeline.sink.options import SinkOptions, read_sink_options
from millrace.pipeline.sink.rows import RowRouter
from tests.harness.millrace import MillraceProcess
from tests.harness.topics import admin_client, create_topic
from tests.pipeline.sink_support import (
    connected,
    rows,
    run_task,
    run_tasks,
    sink_options,
    stream_job,
    values_of,
)

FIRST = {0: ["a", "b"], 1: ["c"], 2: ["d"]}


def test_tasks_become_visible_together(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        outcomes = run_tasks(client, options, job, FIRST)
        assert values_of(broker.bootstrap, topic, 2) == []
        commit_job(client, options, job, outcomes)
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b", "c", "d"]


def test_an_epoch_that_was_committed_is_not_written_again(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        commit_job(client, options, job, run_tasks(client, options, job, FIRST))
        again = run_tasks(client, options, job, FIRST)
        assert all(outcome.is_repeated for outcome in again)
        commit_job(client, options, job, again)
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b", "c", "d"]


def test_a_driver_that_dies_between_two_commits_is_made_good(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        _commit_only_first(client, options, job)
        assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b"]
        again = run_tasks(client, options, job, FIRST)
        assert [outcome.is_repeated for outcome in again] == [True, False, False]
        commit_job(client, options, job, again)
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b", "c", "d"]


def test_another_number_of_tasks_after_half_a_commit_is_refused(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        _commit_only_first(client, options, job)
        again = run_tasks(client, options, job, {0: ["a", "b"], 1: ["c", "d"]})
        with pytest.raises(TasksChanged, match="written in part by 3 tasks and is repeated with 2"):
            commit_job(client, options, job, again)
        abort_job(client, options, job, again)
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b"]


def test_another_number_of_tasks_is_fine_while_nothing_is_committed(
    broker: MillraceProcess, topic: str
) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        before = run_tasks(client, options, job, FIRST)
        _announce(client, options, job, before)
        commit_job(client, options, job, run_tasks(client, options, job, {0: ["a", "b"], 1: ["c", "d"]}))
        # The driver of before was only slow, and tries to commit its third task now.
        identity = before[2].identity
        assert identity is not None
        with pytest.raises(Fenced):
            end_transaction(client, identity, is_commit=True)
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b", "c", "d"]


def test_other_rows_for_a_committed_task_are_refused(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        commit_job(client, options, job, run_tasks(client, options, job, FIRST))
        with pytest.raises(RowsChanged, match="committed with 2 rows and is repeated with 1"):
            run_task(client, options, job, 0, ["a"])


def test_an_old_checkpoint_is_refused(broker: MillraceProcess, topic: str) -> None:
    options, name = sink_options(broker.bootstrap, topic), f"q-{topic}"
    with connected(options) as client:
        for epoch in (0, 1):
            job = stream_job(name, epoch)
            commit_job(client, options, job, run_tasks(client, options, job, {0: [f"e{epoch}"]}))
        with pytest.raises(StaleEpoch, match=r"epoch 0 of .* is to be written, but epoch 1 is there already"):
            run_task(client, options, stream_job(name, 0), 0, ["e0"])


def test_missing_markers_are_refused_unless_accepted(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 7)
    accepting = sink_options(broker.bootstrap, topic, missingMarkers="accept")
    with connected(options) as client:
        outcomes = run_tasks(client, options, job, {0: ["x"]})
        with pytest.raises(MarkersMissing, match="nothing is known of the epochs before"):
            commit_job(client, options, job, outcomes)
        commit_job(client, accepting, job, outcomes)
    assert values_of(broker.bootstrap, topic, 2) == ["x"]


def test_a_zombie_task_can_write_no_more(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        identity = init_producer(client, task_id(options, job, 0), options.transaction_timeout_ms)
        zombie = TaskProducer(client, identity, timeout_ms=options.transaction_timeout_ms)
        router = RowRouter(options, zombie.partition_count, first_turn=0)
        zombie.produce(router.encode(next(rows(["half"]))))
        outcome = run_task(client, options, job, 0, ["half", "whole"])
        with pytest.raises(Fenced, match="a newer attempt of the same task has taken over"):
            zombie.produce(router.encode(next(rows(["whole"]))))
        commit_job(client, options, job, [outcome])
        with pytest.raises(Fenced):
            end_transaction(client, identity, is_commit=True)
    assert values_of(broker.bootstrap, topic, 2) == ["half", "whole"]


def test_an_abort_after_a_commit_takes_nothing_back(broker: MillraceProcess, topic: str) -> None:
    options, job = sink_options(broker.bootstrap, topic), stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        outcomes = run_tasks(client, options, job, FIRST)
        identity = outcomes[0].identity
        assert identity is not None
        end_transaction(client, identity, is_commit=True)
        # Spark knows nothing of the fourth task, which may still run.
        abort_job(client, options, job, [*outcomes, None])
    assert sorted(values_of(broker.bootstrap, topic, 2)) == ["a", "b"]


def test_the_topic_for_markers_is_made_when_rows_name_their_topics(
    broker: MillraceProcess, topic: str
) -> None:
    options = sink_options(broker.bootstrap, topic, markerTopic=f"{topic}-markers")
    job = stream_job(f"q-{topic}", 0)
    with connected(options) as client:
        commit_job(client, options, job, run_tasks(client, options, job, {0: ["x"]}))
        assert len(client.metadata([f"{topic}-markers"])[f"{topic}-markers"].partitions) == 1


def test_a_topic_that_is_missing_is_made_as_the_options_say(broker: MillraceProcess, topic: str) -> None:
    for delivery in ("exactly_once", "at_least_once"):
        name = f"{topic}-{delivery}"
        options = sink_options(
            broker.bootstrap,
            name,
            delivery=delivery,
            topicPartitions="3",
            **{"topicConfig.retention.ms": "86400000", "TOPICCONFIG.Segment.Ms": "3600000"},
        )
        with connected(options) as client:
            if options.is_exactly_once:
                job = stream_job(f"q-{name}", 0)
                commit_job(client, options, job, run_tasks(client, options, job, {0: ["x"], 1: ["y"]}))
            else:
                producer = _producer(client, init_producer(client, None, 60_000), options)
                assert _write_rows(producer, options, 0, rows(["x", "y"])) == 2
        assert sorted(values_of(broker.bootstrap, name, 3)) == ["x", "y"]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        admin = admin_client(broker.bootstrap)
        found = admin.describe_configs([resource])[resource].result(30)
        assert (found["retention.ms"].value, found["segment.ms"].value) == ("86400000", "3600000")


def test_tasks_that_find_a_topic_missing_at_once_make_one(broker: MillraceProcess, topic: str) -> None:
    name = f"{topic}-at-once"
    tasks = 8
    options = sink_options(broker.bootstrap, name, topicPartitions="2")
    job = stream_job(f"q-{name}", 0)
    ready = threading.Barrier(tasks)

    def run(task: int) -> TaskOutcome:
        with connected(options) as client:
            client.metadata()
            ready.wait(30)
            return run_task(client, options, job, task, [f"of {task}"])

    with ThreadPoolExecutor(tasks) as pool:
        outcomes = list(pool.map(run, range(tasks)))
    with connected(options) as client:
        commit_job(client, options, job, outcomes)
    assert sorted(values_of(broker.bootstrap, name, 2)) == [f"of {task}" for task in range(tasks)]


def test_a_topic_whose_settings_the_broker_refuses_is_not_made(broker: MillraceProcess, topic: str) -> None:
    name = f"{topic}-refused"
    options = sink_options(broker.bootstrap, name, **{"topicConfig.retention.ms": "soon"})
    with connected(options) as client:
        with pytest.raises(BrokerRefused, match=rf"topic {name} cannot be created: .*retention\.ms"):
            run_task(client, options, stream_job("q", 0), 0, ["x"])
        assert client.metadata([name]) == {}


def test_a_missing_topic_is_an_error_where_brokers_make_none(tmp_path: Path) -> None:
    strict = MillraceProcess(tmp_path, {"auto.create.topics.enable": "false"})
    strict.start()
    try:
        options = sink_options(strict.bootstrap, "no-such-topic")
        by_row = read_sink_options({"bootstrap.servers": strict.bootstrap}, is_streaming=True)
        words = r"make none by themselves \(auto.create.topics.enable=false\).*topic create no-such-topic"
        with connected(options) as client:
            with pytest.raises(TopicMissing, match=words):
                run_task(client, options, stream_job("q", 0), 0, ["x"])
            producer = _producer(client, init_producer(client, None, 60_000), by_row)
            with pytest.raises(TopicMissing, match=words):
                producer.partition_count("no-such-topic")
            assert client.metadata(["no-such-topic"]) == {}
    finally:
        strict.end()


def test_mistakes_about_topics_and_rows_are_named(broker: MillraceProcess, topic: str) -> None:
    options = sink_options(broker.bootstrap, topic, **{"batch.size": "10000000"})
    with connected(options) as client:
        with pytest.raises(RecordTooLarge, match=r"refuses 1 records, \d+ bytes, in one batch: raise max"):
            run_task(client, options, stream_job(f"q-{topic}", 0), 0, ["x" * 2_000_000])
        with pytest.raises(RecordTooLarge, match=r"set the option batch\.size below"):
            run_task(client, options, stream_job(f"q-{topic}", 0), 0, ["x" * 600_000] * 4)
        too_long = sink_options(broker.bootstrap, topic, **{"transaction.timeout.ms": "2000000000"})
        with pytest.raises(InvalidOption, match=r"timeout\.ms=2000000000 is more than the broker"):
            run_task(client, too_long, stream_job(f"q-{topic}", 0), 0, ["x"])


def test_a_broker_that_is_killed_under_a_task_only_makes_it_wait(tmp_path: Path) -> None:
    broker = MillraceProcess(tmp_path)
    broker.start()
    try:
        topic = create_topic(broker.bootstrap, "output", 1)
        options, job = sink_options(broker.bootstrap, topic), stream_job("query", 0)
        with connected(options) as client:
            identity = init_producer(client, task_id(options, job, 0), options.transaction_timeout_ms)
            producer = TaskProducer(client, identity, timeout_ms=options.transaction_timeout_ms)
            router = RowRouter(options, producer.partition_count, first_turn=0)
            producer.produce(router.encode(next(rows(["before"]))))
            broker.kill()
            broker.launch()
            producer.produce(router.encode(next(rows(["after"]))))
            broker.kill()
            broker.launch()
            end_transaction(client, identity, is_commit=True)
        assert values_of(broker.bootstrap, topic) == ["before", "after"]
    finally:
        broker.end()


def _commit_only_first(client: BrokerClient, options: SinkOptions, job: Job) -> None:
    """As a driver does that dies after the first of its commits."""
    outcomes = run_tasks(client, options, job, FIRST)
    _announce(client, options, job, outcomes)
    identity = outcomes[0].identity
    assert identity is not None
    end_transaction(client, identity, is_commit=True)
