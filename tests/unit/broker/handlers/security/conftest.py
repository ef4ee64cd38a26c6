"""A broker that restricts what its clients may do, and where there can be delegation tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.metadata.config_definitions.broker_security import STANDARD_AUTHORIZER
from tests.unit.broker.handlers.broker import Broker


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(
        tmp_path / "data",
        {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:root",
            "delegation.token.secret.key": "the brokers' secret",
        },
    )
    broker.start()
    yield broker
    broker.stop()
