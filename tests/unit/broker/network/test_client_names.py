"""A client is known by the name that its last request gave, and looked up again when that is another."""

from __future__ import annotations

import struct

import pytest

from millrace.security.quotas.entities import entity
from millrace.security.quotas.precedence import QuotaTable
from millrace.wire.api_keys import ApiKey
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.network.client import Client, correlation_ids


def heartbeat(client_id: bytes | None, correlation_id: int, body: bytes = b"") -> bytes:
    size = -1 if client_id is None else len(client_id)
    head = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, correlation_id, size) + (client_id or b"") + body
    return struct.pack(">i", len(head)) + head


def test_each_request_is_limited_by_the_name_it_gives(broker: Broker) -> None:
    async def work() -> None:
        limits = QuotaTable([(entity(client_id="limited"), {"producer_byte_rate": 1.0})])
        broker.services.throttling.replace(limits)
        client = Client(broker.services)
        found = []
        names = [b"limited", b"limited", b"other", b"limite", b"limited", None, b"", b"limited2", b"limited"]
        for number, name in enumerate(names):
            client.receive(heartbeat(name, number))
            assert correlation_ids(await client.answers()) == [number]
            assert client.connection.client_id == (None if name is None else name.decode())
            found.append(client.connection.throttle is not None)
        assert found == [name == b"limited" for name in names]

    broker.run(work())


def test_names_of_any_length_follow_each_other_in_what_is_received_at_once(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        names = [b"a client with a long name", b"", None, b"a", b"a client with a long name"]
        client.receive(b"".join(heartbeat(name, number) for number, name in enumerate(names)))
        assert correlation_ids(await client.answers()) == list(range(len(names)))

    broker.run(work())


def test_limits_that_come_while_a_client_is_known_count_for_it(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        client.receive(heartbeat(b"me", 1))
        assert client.connection.throttle is None
        limits = QuotaTable([(entity(client_id="me"), {"producer_byte_rate": 1.0})])
        broker.services.throttling.replace(limits)
        client.receive(heartbeat(b"me", 2))
        assert client.connection.throttle is not None

    broker.run(work())


@pytest.mark.parametrize("size", [-2, 9, 32_000])
def test_a_name_that_is_longer_than_its_request_ends_the_connection(broker: Broker, size: int) -> None:
    async def work() -> None:
        client = Client(broker.services)
        client.receive(heartbeat(b"me", 1))
        head = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 2, size) + b"me"
        client.receive(struct.pack(">i", len(head)) + head)
        assert client.connection.is_closing

    broker.run(work())
