"""Lines of the log: the facts beside the message, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import orjson
import pytest

from millrace.broker.watching import logs
from millrace.broker.watching.logs import JsonFormatter, TextFormatter, change_level


def record(message: str, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("millrace.broker", logging.INFO, "", 0, message, None, None)
    made.__dict__.update(facts)
    return made


def test_a_line_for_people_ends_with_the_facts() -> None:
    line = TextFormatter().format(record("listening", address="h:1", reason="two words", empty=""))
    assert line.endswith("INFO    millrace.broker: listening address=h:1 reason='two words' empty=''")


@pytest.mark.parametrize("name", ["x\n2026-01-01T00:00:00.000\tINFO", "x\r\x1b[2J", "x\u2028y", "x\x85y"])
def test_what_clients_call_themselves_begins_no_line_and_moves_no_terminal(name: str) -> None:
    line = TextFormatter().format(record("logged in", principal=name))
    assert line.isprintable()
    assert line.endswith(f"principal={name!r}")


def test_facts_come_before_a_trace() -> None:
    failed = record("failed", task="cleaner")
    failed.exc_text = "Traceback\n  ValueError"
    first, *rest = TextFormatter().format(failed).split("\n")
    assert first.endswith("failed task=cleaner")
    assert rest == ["Traceback", "  ValueError"]


def test_a_line_for_machines_is_one_object() -> None:
    failed = record("it %s", address=("h", 1))
    failed.args = ("failed",)
    try:
        raise ValueError("why")
    except ValueError:
        failed.exc_info = sys.exc_info()
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    found = orjson.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("INFO", "millrace.broker", "it failed")
    assert found["address"] == ["h", 1]
    assert "ValueError: why" in found["exception"]


@pytest.fixture
def levels() -> Iterator[None]:
    ours, root = logging.getLogger("millrace"), logging.getLogger()
    before = ours.level, root.level, list(root.handlers)
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])
    root.handlers[:] = before[2]


@pytest.mark.usefixtures("levels")
def test_a_level_that_was_set_for_a_logger_stays_until_the_brokers_changes() -> None:
    ours = logging.getLogger("millrace")
    ours.setLevel(logging.ERROR)
    change_level("info", "info")
    assert ours.level == logging.ERROR
    change_level("info", "debug")
    assert ours.level == logging.DEBUG


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize("style, formatter", [("json", JsonFormatter), ("text", TextFormatter)])
def test_the_log_goes_to_standard_error_in_the_chosen_style(
    style: str, formatter: type[logging.Formatter]
) -> None:
    logs.set_up("warning", style)
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr
    assert type(handler.formatter) is formatter
    assert logging.getLogger("millrace").level == logging.WARNING
