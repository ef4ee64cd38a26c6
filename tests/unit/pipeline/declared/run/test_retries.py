"""A query that fails is tried again with growing pauses, and brokers are waited for, but not for ever."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millrace.client.errors import ConnectionFailed
from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.run.outages import clusters_of, is_reachable, wait_for_brokers
from millrace.pipeline.declared.run.retries import Attempts, RetryLimits

TEXT = """\
pipeline: p
sources: {a: {topic: a, format: text}}
sinks:
  one: {from: a, topic: one, format: text}
  two: {from: a, topic: two, format: text, bootstrap.servers: "other:9092"}
"""


def test_pauses_grow_until_the_query_is_given_up() -> None:
    attempts = Attempts(RetryLimits(retries=3))
    delays = []
    for now in (100.0, 200.0, 300.0):
        said = attempts.failed("no room", now, is_outage=False)
        assert attempts.retry_at is not None
        delays.append(attempts.retry_at - now)
        assert said.startswith("no room; try ")
    assert delays == [1.0, 2.0, 4.0]
    assert attempts.failed("no room", 400.0, is_outage=False) == "no room; given up"
    assert (attempts.is_given_up, attempts.retry_at, attempts.is_failing) == (True, None, True)


def test_a_finished_batch_makes_earlier_failures_forgotten() -> None:
    attempts = Attempts(RetryLimits(retries=1))
    for batch in range(5):
        attempts.failed("no room", 0.0, is_outage=False)
        assert not attempts.is_given_up
        attempts.retry_at = None
        attempts.advanced(batch)
    attempts.advanced(4)
    attempts.failed("no room", 0.0, is_outage=False)
    attempts.advanced(4)
    attempts.failed("no room", 0.0, is_outage=False)
    assert attempts.is_given_up


def test_a_query_that_was_started_again_is_failing_until_it_gets_somewhere() -> None:
    attempts = Attempts(RetryLimits(retries=3))
    attempts.advanced(4)
    seen = []
    steps: list[Callable[[], None]] = [
        partial(attempts.advanced, 4),
        partial(attempts.advanced, 5),
        attempts.recovered,
    ]
    for step in steps:
        if not attempts.is_failing:
            attempts.failed("no room", 0.0, is_outage=False)
            attempts.retry_at = None
        step()
        seen.append(attempts.is_failing)
    assert seen == [True, False, False]


def test_an_outage_costs_no_tries_and_is_bounded_by_time() -> None:
    attempts = Attempts(RetryLimits(retries=0, outage_timeout_s=60.0))
    for now in (0.0, 20.0, 59.0):
        assert "goes on when a broker answers" in attempts.failed("gone", now, is_outage=True)
        assert attempts.may_wait(now)
    assert not attempts.may_wait(60.0)


def test_waiting_says_at_once_where_nobody_answers_and_when_somebody_does() -> None:
    said: list[str] = []
    answers = iter([False, False, True])
    wait_for_brokers(
        ["nowhere:9092"],
        limit_s=60.0,
        say=said.append,
        is_stopped=lambda: False,
        probe=lambda _: next(answers),
    )
    assert said[0] == "no broker answers at nowhere:9092: waiting for one, at most 60 s"
    assert said[-1].startswith("a broker answers after")


def test_waiting_ends_with_an_error_or_with_the_wish_to_stop() -> None:
    said: list[str] = []
    with pytest.raises(ConnectionFailed, match=r"no broker answers at nowhere:9092 after 0 s"):
        wait_for_brokers(
            ["nowhere:9092"], limit_s=0.0, say=said.append, is_stopped=lambda: False, probe=lambda _: False
        )
    wait_for_brokers(
        ["nowhere:9092"], limit_s=60.0, say=said.append, is_stopped=lambda: True, probe=lambda _: False
    )


def test_any_of_the_servers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_reachable(f"127.0.0.1:1,127.0.0.1:{port}")
    assert not is_reachable("127.0.0.1:1")


def test_the_option_counts_before_the_file_that_before_the_variable_and_that_before_the_default(
    tmp_path: Path,
) -> None:
    plain, named = tmp_path / "plain.yaml", tmp_path / "named.yaml"
    plain.write_text(TEXT)
    named.write_text(TEXT + "bootstrap.servers: file:9092\n")
    variable = {"MILLRACE_BOOTSTRAP": "variable:9092"}
    found = [
        clusters_of(load(path, environment, bootstrap=option)[0])
        for path, environment, option in (
            (plain, {}, None),
            (plain, variable, None),
            (named, variable, None),
            (named, variable, "option:9092"),
        )
    ]
    # What a sink says for itself stays.
    assert found == [
        ("127.0.0.1:9092", "other:9092"),
        ("variable:9092", "other:9092"),
        ("file:9092", "other:9092"),
        ("option:9092", "other:9092"),
    ]
