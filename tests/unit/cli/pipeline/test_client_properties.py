"""What pipelines take from a file of client properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.pipeline.client_properties import client_properties
from millrace.client.errors import InvalidOption


def test_without_a_file_there_are_none() -> None:
    assert client_properties(None) == {}


def test_a_file_says_how_to_reach_the_brokers(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ada\nlinger.ms=5\n")
    assert client_properties(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
    }


def test_a_name_that_no_client_knows_is_refused_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocoll=SASL_SSL\n")
    with pytest.raises(InvalidOption, match=r"client\.properties: .* did you mean security\.protocol\?"):
        client_properties(file)
