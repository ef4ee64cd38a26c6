"""The broker that the tests of groups talk to."""

from __future__ import annotations

import pytest

from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import Broker


@pytest.fixture
def groups(broker: Broker) -> Broker:
    """A broker that has been asked for a coordinator, and the topic `t` with three partitions."""
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker
