"""What pipelines take from a file of client properties."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from millrace.cli.pipeline.client_properties import client_properties


def test_without_a_file_there_are_none() -> None:
    assert client_properties(None) == {}


def test_a_file_says_how_to_reach_the_brokers(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.username=ada\n")
    assert client_properties(file) == {"security.protocol": "SASL_SSL", "sasl.username": "ada"}


def test_a_property_of_other_clients_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nlinger.ms=5\n")
    with pytest.raises(
        click.ClickException, match=r"pipelines know no linger\.ms; known are .*sasl\.username"
    ):
        client_properties(file)
