"""Millrace processes for tests of what only Millrace promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import CheckDisks
from tests.harness.millrace import MillraceProcess

StartMillrace = Callable[..., MillraceProcess]


@pytest.fixture(autouse=True)
def _only_millrace(against: str) -> None:
    if against != "millrace":
        pytest.skip("a promise of Millrace's own")


@pytest.fixture(scope="module")
def start_millrace(
    against: str, tmp_path_factory: pytest.TempPathFactory, check_disks: CheckDisks
) -> Iterator[StartMillrace]:
    """Starts brokers that live until the module's end; then Kafka's tool judges their disks."""
    started: list[MillraceProcess] = []

    def start(settings: Mapping[str, str] | None = None, *, directory: Path | None = None) -> MillraceProcess:
        broker = MillraceProcess(directory or tmp_path_factory.mktemp("millrace"), settings)
        started.append(broker)
        broker.start()
        return broker

    if against != "millrace":
        pytest.skip("a promise of Millrace's own")
    yield start
    for broker in started:
        broker.end()
    for broker in started:
        check_disks(broker)
