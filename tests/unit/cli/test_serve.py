"""`millrace serve` only reads its options: what runs is the broker, with the configuration that they give."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.broker import app
from millrace.broker.config.config import BrokerConfig
from millrace.cli.serve import serve
from millrace.metadata.errors import InvalidConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    configs: list[BrokerConfig] = []
    monkeypatch.setattr(app, "run", configs.append)
    return configs


def test_a_broker_is_run_with_what_the_options_say(started: list[BrokerConfig], tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path), "--listen", "127.0.0.1:19092", "--set", "num.partitions=7"]
    result = CliRunner().invoke(serve, words)
    assert result.exit_code == 0, result.output
    (config,) = started
    assert [str(path) for path in config.log_dirs] == [str(tmp_path)]
    assert [(each.host, each.port) for each in config.listeners] == [("127.0.0.1", 19092)]
    assert config.is_set("num.partitions")


def test_no_broker_is_run_with_a_setting_that_is_wrong(started: list[BrokerConfig], tmp_path: Path) -> None:
    result = CliRunner().invoke(serve, ["--data-dir", str(tmp_path), "--set", "num.partitions=many"])
    assert isinstance(result.exception, InvalidConfig)
    assert started == []
