"""The broker that the tests of transactions talk to."""

from __future__ import annotations

import pytest

from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.transactions.producers import NAME


@pytest.fixture
def coordinator(broker: Broker) -> Broker:
    """A broker with a topic, and coordinators that have been looked for."""
    broker.ask(
        CreateTopicsRequest(topics=[CreatableTopic(name="orders", num_partitions=2, replication_factor=1)]), 7
    )
    broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"]), 4)
    broker.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]), 4)
    return broker
