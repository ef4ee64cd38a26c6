"""`millrace pipeline`: its commands are found by name, and errors of Spark become a sentence."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from millrace.cli.main import CLI
from millrace.cli.pipeline.commands import COMMAND


class SparkError(Exception):
    """As far as its module tells."""


SparkError.__module__ = "pyspark.errors.exceptions"


def test_every_command_is_in_the_module_that_is_named_for_it() -> None:
    context = click.Context(COMMAND)
    for name in COMMAND.list_commands(context):
        command = COMMAND.get_command(context, name)
        assert command is not None, name
        assert command.name == name
    assert COMMAND.get_command(context, "nonsense") is None


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def explain() -> None:
        raise error

    monkeypatch.setattr(COMMAND, "get_command", lambda _context, _name: explain)


def test_an_error_of_spark_is_a_sentence_unless_the_traceback_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = SparkError("[TABLE_OR_VIEW_NOT_FOUND] no such table")
    failing(error, monkeypatch)
    result = CliRunner().invoke(CLI, ["pipeline", "explain"])
    assert result.exit_code == 1
    assert "no such table" in result.output
    assert "Traceback" not in result.output
    assert CliRunner().invoke(CLI, ["--debug", "pipeline", "explain"]).exception is error


def test_any_other_error_passes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("ours")
    failing(error, monkeypatch)
    assert CliRunner().invoke(CLI, ["pipeline", "explain"]).exception is error
