"""The files that `millrace secure init` writes: each is read back by whom it is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.broker.config.config import load
from millrace.cli.secure import settings_files
from millrace.cli.secure.settings_files import Login, Place
from millrace.client.properties import translated
from millrace.core.properties import parse_properties
from millrace.pipeline.sink.options import read_sink_options
from millrace.pipeline.source.options import read_options

ADMIN = Login("admin", 'ge"hei\\m')


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(directory=tmp_path, listen="127.0.0.1:9092", advertised="h:9092", data=tmp_path / "data")
    made.authority.write_text("-----BEGIN CERTIFICATE-----")
    return made


def test_a_broker_takes_its_settings(place: Place) -> None:
    file = place.directory / "broker.toml"
    file.write_text(settings_files.broker_settings(place, "admin", Login("broker", "unter uns"), "secret"))
    config = load(file, {}, {})
    assert [(each.name, each.host, each.port) for each in config.listeners] == [
        ("SASL_SSL", "127.0.0.1", 9092)
    ]
    assert config.text("super.users") == "User:admin;User:broker"
    assert config.text("metadata.bootstrap.credentials.file") == str(place.first_users)
    assert "unter uns" not in repr(config)


@pytest.mark.parametrize("render", [settings_files.java_properties, settings_files.librdkafka_properties])
def test_both_kinds_of_clients_log_in_alike(place: Place, render: object) -> None:
    assert callable(render)
    found = translated(parse_properties(render(place, ADMIN)))
    assert found.values == settings_files.librdkafka_settings(place, ADMIN)


def test_spark_takes_the_same(place: Place) -> None:
    options = json.loads(settings_files.spark_options(place, ADMIN))
    source = read_options({**options, "subscribe": "t"}, streaming=True)
    sink = read_sink_options({**options, "topic": "t"}, is_streaming=False)
    assert (source.bootstrap, sink.bootstrap) == ("h:9092", "h:9092")
    for security in (source.security, sink.security):
        assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
        assert (security.username, security.password) == (ADMIN.user, ADMIN.password)


def test_a_password_is_in_no_representation() -> None:
    assert ADMIN.password not in repr(ADMIN)
