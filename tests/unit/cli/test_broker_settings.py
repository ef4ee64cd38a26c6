"""Options of `serve` and `doctor` as settings, and the doctor's verdict on them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millrace.cli.broker_settings import load_config, overrides
from millrace.cli.main import CLI


def test_short_forms_become_settings() -> None:
    assert overrides((Path("d"),), "127.0.0.1:9092", ("node.id=3", "broker.rack=a=b")) == {
        "log.dirs": "d",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "node.id": "3",
        "broker.rack": "a=b",
    }
    assert overrides((), None, ()) == {}
    assert overrides((Path("d"), Path("/e")), None, ()) == {"log.dirs": "d,/e"}


@pytest.mark.parametrize("listen", [":9092", "[::1]:9092", "host.example:0"])
def test_addresses_to_listen_on(listen: str) -> None:
    assert overrides((), listen, ()) == {"listeners": f"PLAINTEXT://{listen}"}


@pytest.mark.parametrize("listen", ["9092", "host", "host:", "host:99999", "::1:9092", "host:x"])
def test_anything_else_to_listen_on_is_wrong_usage(listen: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        overrides((), listen, ())


def test_a_setting_is_given_in_one_form_only() -> None:
    with pytest.raises(click.UsageError, match="give one of them"):
        overrides((Path("d"),), None, ("log.dirs=e",))


def test_the_doctor_passes_a_broker_that_would_work(tmp_path: Path) -> None:
    words = [
        "doctor",
        "-d",
        str(tmp_path),
        "-l",
        "127.0.0.1:0",
        "-s",
        "metrics.listener=127.0.0.1:0",
        "--json",
    ]
    result = CliRunner().invoke(CLI, words)
    findings = {
        finding["check"]: finding["status"] for finding in map(json.loads, result.output.splitlines())
    }
    failed = [check for check, status in findings.items() if status == "FAIL"]
    assert failed == []
    assert result.exit_code == 0
    assert findings["data directory"] == findings["listener PLAINTEXT"] == "OK"


def test_the_doctor_names_a_port_in_use_and_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(CLI, ["doctor", "-d", str(tmp_path), "-l", address])
    assert result.exit_code == 1
    assert f"{address}: Address already in use" in result.output
    assert "choose another address" in result.output


def test_the_doctor_explains_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(CLI, ["doctor", "-d", str(tmp_path), "-s", "log.retention.mss=1"])
    assert result.exit_code == 1
    assert "did you mean log.retention.ms?" in result.output


def test_serve_refuses_a_bad_setting_before_anything_else(tmp_path: Path) -> None:
    result = CliRunner().invoke(CLI, ["serve", "-d", str(tmp_path / "data"), "-s", "node.id=x"])
    assert "node.id" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_config_docs_explains_settings_by_part_of_their_name() -> None:
    result = CliRunner().invoke(CLI, ["config", "docs", "retention.bytes", "--topic", "--json"])
    (setting,) = [json.loads(line) for line in result.output.splitlines()]
    assert (setting["scope"], setting["name"], setting["default"]) == ("topic", "retention.bytes", "-1")
    text = CliRunner().invoke(CLI, ["config", "docs"]).output
    assert "log.retention.ms" in text
    assert CliRunner().invoke(CLI, ["config", "docs", "no.such.setting"]).exit_code == 1


def test_config_docs_as_markdown_is_the_page_of_the_docs() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
    assert CliRunner().invoke(CLI, ["config", "docs", "--markdown"]).output == page.read_text()


def test_the_doctor_looks_at_each_data_directory(tmp_path: Path) -> None:
    sound, taken = tmp_path / "sound", tmp_path / "taken"
    taken.touch()
    words = ["doctor", "-d", str(sound), "-d", f"{taken}/below", "-l", "127.0.0.1:0", "--json"]
    result = CliRunner().invoke(CLI, words)
    findings = {
        finding["check"]: finding["status"] for finding in map(json.loads, result.output.splitlines())
    }
    assert findings[f"data directory {sound}"] == "OK"
    assert findings[f"data directory {taken}/below"] == "FAIL"
    assert result.exit_code == 1


def test_a_secret_among_the_arguments_is_warned_of_without_showing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_config(
        data_dirs=(tmp_path,),
        listen=None,
        config_file=None,
        settings=("metrics.auth.token=hunter2hunter2hunter2", "num.partitions=2"),
    )
    said = capsys.readouterr().err
    assert "metrics.auth.token: a secret among the arguments" in said
    assert "hunter2" not in said
    assert "num.partitions" not in said
