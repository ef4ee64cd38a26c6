"""The file of `--command-config`: read once, checked, and never told to anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.command_config import properties_of, read_properties, security_of, servers_of
from millrace.cli.options import DEFAULT_BOOTSTRAP, BrokerAddress
from millrace.client.errors import InvalidOption

LOGIN = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
    "sasl.username=ada\nsasl.password=geheim\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "client.properties"
    file.touch(mode=0o600)
    return file


def address(path: Path | None, bootstrap: str = DEFAULT_BOOTSTRAP) -> BrokerAddress:
    return BrokerAddress(bootstrap=bootstrap, command_config=path, timeout_s=1.0)


def test_without_a_file_connections_are_plain() -> None:
    assert properties_of(address(None)).is_empty
    assert security_of(address(None)).protocol == "PLAINTEXT"
    assert servers_of(address(None)) == DEFAULT_BOOTSTRAP


def test_a_file_says_as_whom_to_log_in(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(LOGIN)
    found = security_of(address(path))
    assert (found.mechanism, found.username, found.password) == ("SCRAM-SHA-256", "ada", "geheim")
    assert capsys.readouterr().err == ""


def test_a_secret_that_others_may_read_is_told_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(LOGIN)
    path.chmod(0o640)
    for _ in range(3):
        read_properties(path)
    assert (
        capsys.readouterr().err == f"Warning: {path} holds a secret that others may read: chmod 600 {path}\n"
    )


def test_the_servers_of_a_file_count_unless_others_are_named(path: Path) -> None:
    path.write_text("bootstrap.servers=from-file:1\n")
    assert servers_of(address(path)) == "from-file:1"
    assert servers_of(address(path, "named:2")) == "named:2"


@pytest.mark.parametrize(
    "content, words",
    [
        (LOGIN.replace("sasl.username", "sasl.usrname"), "did you mean sasl.username?"),
        (LOGIN.replace("SASL_PLAINTEXT", "SASL"), "security.protocol=SASL"),
        (LOGIN.replace("sasl.mechanism=SCRAM-SHA-256\n", ""), "sasl.mechanism is missing"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_without_the_secret(
    path: Path, content: str, words: str
) -> None:
    path.write_text(content)
    with pytest.raises(InvalidOption) as refused:
        security_of(address(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_file_that_is_no_text_is_told(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidOption, match="is no text in UTF-8"):
        read_properties(path)
