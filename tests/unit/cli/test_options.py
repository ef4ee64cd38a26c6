"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from millrace.cli.options import BrokerAddress, broker_options, json_option, key_values


@click.command()
@json_option
@broker_options
def show(as_json: bool, **address: Any) -> None:
    click.echo(f"{as_json} {BrokerAddress(**address)}")


def test_a_command_gets_the_address_of_a_broker(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.touch()
    words = ["-b", "a:1,b:2", "--command-config", str(properties), "--timeout", "2", "--json"]
    result = CliRunner().invoke(show, words)
    wanted = BrokerAddress(bootstrap="a:1,b:2", command_config=properties, timeout_s=2.0)
    assert result.output == f"True {wanted}\n"


def test_the_environment_names_the_broker_unless_an_option_does() -> None:
    runner = CliRunner(env={"MILLRACE_BOOTSTRAP": "from-env:9"})
    assert "bootstrap='from-env:9'" in runner.invoke(show, []).output
    assert "bootstrap='x:1'" in runner.invoke(show, ["-b", "x:1"]).output
    assert "bootstrap='127.0.0.1:9092'" in CliRunner(env={"MILLRACE_BOOTSTRAP": None}).invoke(show, []).output


@pytest.mark.parametrize("words", [["--timeout", "0"], ["--timeout", "x"], ["--command-config", "not-there"]])
def test_a_wrong_value_is_wrong_usage(words: list[str]) -> None:
    result = CliRunner().invoke(show, words)
    assert result.exit_code == 2
    assert words[0] in result.output


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert key_values(("a=1", " b =x=y", "c="), option="--set") == {"a": "1", "b": "x=y", "c": ""}
    assert key_values((), option="--set") == {}


@pytest.mark.parametrize("word", ["a", "=1", "  =1", ""])
def test_a_word_that_is_no_pair_names_its_option(word: str) -> None:
    with pytest.raises(click.BadParameter, match="is not of the form key=value") as refused:
        key_values((word,), option="--set")
    assert "'--set'" in refused.value.format_message()
