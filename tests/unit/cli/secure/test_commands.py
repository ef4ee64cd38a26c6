"""`millrace secure`: what is made, for whose eyes, and what is never printed or overwritten."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli.command_config import read_properties
from millrace.cli.main import CLI
from millrace.cli.secure import certificates
from millrace.cli.secure.certificates import hosts_of
from millrace.core.properties import parse_properties
from millrace.security.credentials.first_users import parse_first_users
from millrace.security.credentials.scram import ScramMechanism, is_password

FILES = [
    "broker.pem",
    "broker.toml",
    "ca-key.pem",
    "ca.pem",
    "client.librdkafka.properties",
    "client.properties",
    "client.spark.json",
    "first-users.json",
]


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(CLI, ["secure", *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, str]:
    directory = tmp_path / "secrets"
    return directory, run("init", str(directory), "--host", "broker.example", "--listen", ":9192")


def test_all_files_are_for_their_owner_alone(made: tuple[Path, str]) -> None:
    directory, _ = made
    assert sorted(file.name for file in directory.iterdir()) == FILES
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o600}


def test_the_password_of_the_client_is_the_users_and_is_not_printed(made: tuple[Path, str]) -> None:
    directory, said = made
    password = parse_properties((directory / "client.librdkafka.properties").read_text())["sasl.password"]
    assert len(password) >= 32
    assert password not in said
    users = parse_first_users((directory / "first-users.json").read_text())
    assert sorted(users) == ["admin", "broker"]
    assert is_password(ScramMechanism.SHA_512, users["admin"][ScramMechanism.SHA_512], password)
    # Each has a password of their own.
    assert not is_password(ScramMechanism.SHA_512, users["broker"][ScramMechanism.SHA_512], password)
    assert read_properties(directory / "client.properties").values["sasl.password"] == password


def test_the_certificate_is_for_every_name_of_the_broker(made: tuple[Path, str]) -> None:
    directory, _ = made
    hosts = hosts_of((directory / "broker.pem").read_bytes())
    assert set(hosts) == {"broker.example", "localhost", "127.0.0.1", "::1", socket.gethostname()}
    options = json.loads((directory / "client.spark.json").read_text())
    assert options["kafka.bootstrap.servers"] == "broker.example:9192"


def test_the_next_commands_are_told(made: tuple[Path, str]) -> None:
    directory, said = made
    assert f"millrace serve --config {directory}/broker.toml" in said
    assert f"export MILLRACE_CLIENT_CONFIG={directory}/client.properties" in said


def test_nothing_is_overwritten(made: tuple[Path, str]) -> None:
    directory, _ = made
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    assert "is not empty" in run("init", str(directory), code=1)
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


@pytest.mark.parametrize(
    "words", [("--user", "broker"), ("--user", 'a"b'), ("--listen", "9092"), ("--listen", "h:0")]
)
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path, words: tuple[str, str]) -> None:
    run("init", str(tmp_path / "new"), *words, code=2)
    assert not (tmp_path / "new").exists()


def test_a_certificate_is_renewed_for_the_same_hosts_and_more(made: tuple[Path, str]) -> None:
    directory, _ = made
    store = directory / "broker.pem"
    before, hosts = store.read_bytes(), hosts_of(store.read_bytes())
    run("cert", "renew", str(directory), "--host", "new.example", "--days", "30")
    assert store.read_bytes() != before
    assert sorted(hosts_of(store.read_bytes())) == sorted([*hosts, "new.example"])
    assert store.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in directory.iterdir()) == FILES


def test_a_client_gets_a_certificate_of_the_same_authority(made: tuple[Path, str]) -> None:
    directory, _ = made
    run("cert", "client", str(directory), "alice")
    assert (directory / "client-alice.pem").stat().st_mode & 0o777 == 0o600
    assert "is there already" in run("cert", "client", str(directory), "alice", code=1)
    run("cert", "client", str(directory), "../x", code=2)


def test_a_directory_without_an_authority_is_told(tmp_path: Path) -> None:
    assert "`millrace secure init` makes it" in run("cert", "client", str(tmp_path), "a", code=1)
    assert "`millrace secure init` makes it" in run("cert", "renew", str(tmp_path), code=1)


def test_without_the_package_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise certificates.NoPackage

    monkeypatch.setattr(certificates, "require_package", missing)
    assert "millrace[security]" in run("init", str(tmp_path / "new"), code=1)
    assert not (tmp_path / "new").exists()
