"""The command as a whole: help, usage errors, exit codes, and what start-up may not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from millrace.cli import main as main_module
from millrace.cli.main import CLI, main
from millrace.core.errors import MillraceError


def exit_code(arguments: Sequence[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def every_command() -> list[list[str]]:
    words: list[list[str]] = []
    context = click.Context(CLI)
    for name in CLI.list_commands(context):
        command = CLI.get_command(context, name)
        words.append([name])
        if isinstance(command, click.Group):
            words += [[name, inner] for inner in command.list_commands(context)]
    return words


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_explains_itself(words: list[str]) -> None:
    result = CliRunner().invoke(CLI, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: millrace ")


def test_the_overview_names_every_command_without_importing_it() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from millrace.cli.main import CLI\n"
        "print(CliRunner().invoke(CLI, ['--help']).output)\n"
        "print([name for name in sys.modules if name.startswith('millrace.cli.')])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "doctor" in answer
    assert answer.splitlines()[-1] == "['millrace.cli.main']"


def test_serve_imports_neither_the_client_library_nor_rich() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from millrace.cli.main import CLI\n"
        "assert CliRunner().invoke(CLI, ['serve', '--help']).exit_code == 0\n"
        "print([name for name in ('rich', 'confluent_kafka') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "t", "--config", "no-equals-sign"],
        ["topic", "create", "t", "--partitions", "0"],
        ["topic", "alter", "t"],
        ["produce", "t", "--json", "--key-separator", ":"],
        ["produce", "t", "--whole-files"],
        ["produce", "t", "--compression", "rar"],
        ["consume", "t", "--from", "some day"],
        ["consume", "t", "--partitions", "x"],
        ["consume", "t", "--template", "{nope}"],
        ["consume", "t", "--format", "template"],
        ["consume", "t", "--follow", "--to", "-1h"],
        ["config", "describe"],
        ["config", "describe", "--topic", "t", "--broker", "1"],
        ["config", "alter", "--topic", "t"],
        ["serve", "--set", "no-equals-sign"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(words) == 2
    assert "Error: " in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["topic", "list", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "Error: no broker answers at 127.0.0.1:1: Connection refused\n"


def test_an_address_without_a_port_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["topic", "list", "-b", "localhost"]) == 1
    assert "'localhost' is not an address of the form HOST:PORT" in capsys.readouterr().err


class Broken(MillraceError):
    pass


@pytest.mark.parametrize(
    "failure, code, text",
    [
        (Broken("the reason"), 1, "Error: the reason\n"),
        (
            FileNotFoundError(2, "No such file or directory", "x.toml"),
            1,
            "Error: x.toml: No such file or directory\n",
        ),
        (RuntimeError("surprise"), 1, "Error: RuntimeError: surprise (`millrace --debug ...` shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures_become_one_line_and_an_exit_code(
    failure: BaseException,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _command_that_raises(failure, monkeypatch)
    assert exit_code([]) == code
    assert capsys.readouterr().err.lstrip("\n") == text


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    _command_that_raises(Broken("the reason"), monkeypatch)
    with pytest.raises(Broken):
        main(["--debug"])


def _command_that_raises(failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise failure

    monkeypatch.setattr(main_module, "CLI", failing)
