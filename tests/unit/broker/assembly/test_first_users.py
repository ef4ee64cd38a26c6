"""A cluster without users gets those of a file, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.first_users import add_first_users
from millrace.broker.config.config import load
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.security.commands import AlterCredentials
from millrace.security.credentials.first_users import render_first_users
from millrace.security.credentials.scram import ScramMechanism, derive_credential
from tests.unit.broker.assembly.grounds import ground_of
from tests.unit.broker.handlers.broker import Broker

SETTING = "metadata.bootstrap.credentials.file"
CREDENTIAL = derive_credential(ScramMechanism.SHA_512, "geheim", salt=b"salt", iterations=4096)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "first-users.json"
    path.write_text(
        render_first_users({name: {ScramMechanism.SHA_512: CREDENTIAL} for name in ("admin", "broker")})
    )
    return path


def test_they_are_added_while_there_is_nobody(tmp_path: Path, file: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.start()
    try:
        metadata = broker.services.metadata
        ground = ground_of(tmp_path / "other", {SETTING: str(file)})
        broker.run(add_first_users(ground, metadata))
        credentials = metadata.image.security.credentials
        assert {name: dict(credentials[name]) for name in credentials} == {
            "admin": {"SCRAM-SHA-512": CREDENTIAL},
            "broker": {"SCRAM-SHA-512": CREDENTIAL},
        }
        # Who was deleted stays away.
        gone = AlterCredentials(user="admin", removed=["SCRAM-SHA-512"])
        assert broker.run(metadata.security.alter_credentials([gone])) == [None]
        broker.run(add_first_users(ground, metadata))
        assert list(metadata.image.security.credentials) == ["broker"]
    finally:
        broker.stop()


def test_without_a_file_nobody_is_added(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.start()
    try:
        broker.run(add_first_users(ground_of(tmp_path / "other"), broker.services.metadata))
        assert len(broker.services.metadata.image.security.credentials) == 0
    finally:
        broker.stop()


@pytest.mark.parametrize("content", [b"no users", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "users"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig, match=SETTING):
        part_settings.first_users(load(None, {SETTING: str(path)}, {}))
    with pytest.raises(InvalidConfig, match="cannot be read"):
        part_settings.first_users(load(None, {SETTING: str(tmp_path / "none")}, {}))
