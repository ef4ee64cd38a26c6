"""Groups of kinds that librdkafka does not list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millrace.cli.group import other_kinds
from millrace.cli.group.state import GroupListing
from millrace.cli.options import BrokerAddress
from millrace.client.errors import ConnectionClosed
from millrace.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


class Broker:
    def __init__(self, *groups: ListedGroup, is_old: bool = False) -> None:
        self.groups = list(groups)
        self.is_old = is_old

    def ask(self, _key: int, version: int, request: ListGroupsRequest) -> ListGroupsResponse:
        assert (version, request.types_filter) == (5, ["share", "streams"])
        if self.is_old:
            raise ConnectionClosed("h:1")
        return ListGroupsResponse(groups=self.groups)


def test_every_broker_is_asked_and_old_ones_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {
        ("h", 1): Broker(ListedGroup(group_id="app", group_state="NotReady", group_type="Streams")),
        ("h", 2): Broker(is_old=True),
        ("h", 3): Broker(ListedGroup(group_id="jobs", group_state="Stable", group_type="share")),
    }

    @contextmanager
    def one(*_: Any) -> Iterator[None]:
        yield None

    @contextmanager
    def connection(address: tuple[str, int], _where: BrokerAddress) -> Iterator[Broker]:
        yield brokers[address]

    monkeypatch.setattr(other_kinds, "connected", one)
    monkeypatch.setattr(other_kinds, "broker_addresses", lambda _: {port: (h, port) for h, port in brokers})
    monkeypatch.setattr(other_kinds, "broker_connection", connection)
    address = BrokerAddress(bootstrap="h:1", timeout_s=1.0, command_config=None)
    assert other_kinds.list_others(address) == [
        GroupListing(group="app", state="NotReady", type="streams"),
        GroupListing(group="jobs", state="Stable", type="share"),
    ]
