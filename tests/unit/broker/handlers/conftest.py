"""The broker that the handlers' tests talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.handlers.broker import RESTRICTED, Broker


@pytest.fixture
def restricted(tmp_path: Path) -> Iterator[Broker]:
    """A broker that checks permissions, of which there are none yet."""
    broker = Broker(tmp_path / "restricted", RESTRICTED)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()
