"""The HTTP port comes up with the broker, or without it where nobody asked for it; the log level follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from millrace.broker.assembly.watching import follow_log_level, start_http
from millrace.broker.config.config import load
from millrace.broker.watching.pages import Pages
from millrace.broker.watching.readiness import Readiness
from millrace.log.directories.log_directories import LogDirectories
from millrace.metadata.errors import InvalidConfig
from tests.unit.broker.assembly.grounds import ground_of


def pages() -> Pages:
    return Pages(cast("LogDirectories", None), Readiness())


@pytest.fixture
def level() -> Iterator[logging.Logger]:
    logger = logging.getLogger("millrace")
    before = logger.level
    yield logger
    logger.setLevel(before)


def test_no_address_means_no_port(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, {"metrics.listener": ""})
    assert asyncio.run(start_http(ground, pages())) is None


def test_a_port_that_was_asked_for_must_be_free(tmp_path: Path) -> None:
    async def main() -> None:
        taken = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        address = "127.0.0.1:" + str(taken.sockets[0].getsockname()[1])
        with pytest.raises(InvalidConfig, match=r"metrics\.listener"):
            await start_http(ground_of(tmp_path, {"metrics.listener": address}), pages())
        taken.close()

    asyncio.run(main())


def test_the_port_by_default_may_be_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers on one machine that nobody configured: the second goes without."""
    monkeypatch.setattr("millrace.broker.assembly.part_settings.has_metrics_listener", lambda _: False)

    async def main() -> None:
        taken = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        address = "127.0.0.1:" + str(taken.sockets[0].getsockname()[1])
        assert await start_http(ground_of(tmp_path, {"metrics.listener": address}), pages()) is None
        taken.close()

    asyncio.run(main())
    assert "the port is taken" in caplog.text


def test_the_level_of_the_log_follows_the_configuration(tmp_path: Path, level: logging.Logger) -> None:
    ground = ground_of(tmp_path)
    follow_log_level(ground)
    level.setLevel(logging.CRITICAL)
    ground.config.replace(load(None, {"num.partitions": "3"}, {}))
    assert level.level == logging.CRITICAL
    ground.config.replace(load(None, {"logging.level": "DEBUG"}, {}))
    assert level.level == logging.DEBUG
