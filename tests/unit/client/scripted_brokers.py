"""Brokers for the blocking client that answer from a script, over the real codecs and without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.client import broker_client as client_module
from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import ConnectionClosed, ConnectionFailed
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Answer = Callable[[Any, int], Any]
"""From a decoded request and the node it was sent to: the response, or an error to be raised."""

BOOTSTRAP = "one:1"
NODES = {1: ("one", 1), 2: ("two", 2)}
TOPIC_ID = bytes(range(16))


class ScriptedBrokers:
    """Two brokers. `answers` has what an API says; `leaders` of the partitions of the topic `orders`."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {ApiKey.METADATA: self.metadata}
        self.asked: list[tuple[int, int, Any]] = []
        """Node, API and request, but for versions and metadata."""
        self.metadata_asked = 0
        self.opened: list[tuple[str, int]] = []
        self.closed: list[tuple[str, int]] = []
        self.refusing: set[tuple[str, int]] = set()
        self.closing: set[tuple[str, int]] = set()
        """Those that end a connection without an answer."""
        self.leaders = {0: 1, 1: 2}
        self.versions: dict[int, tuple[int, int]] = {}
        self.now = 0.0
        self.slept: list[float] = []

    def install(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        """Play the connections of `BrokerClient`, and the clock of these modules."""
        brokers = self

        class Bound(ScriptedConnection):
            def __init__(self, host: str, port: int, **_: object) -> None:
                super().__init__(brokers, host, port)

        monkeypatch.setattr(client_module, "BlockingConnection", Bound)
        for module in (client_module, *modules):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def requests(self, api_key: int) -> list[Any]:
        return [message for _, key, message in self.asked if key == api_key]

    def metadata(self, request: Any, _node: int) -> Any:
        self.metadata_asked += 1
        partitions = [
            MetadataResponsePartition(error_code=0, partition_index=number, leader_id=node, leader_epoch=5)
            for number, node in self.leaders.items()
        ]
        wanted = ["orders"] if request.topics is None else [each.name for each in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node, host=host, port=port)
                for node, (host, port) in NODES.items()
            ],
            topics=[
                MetadataResponseTopic(error_code=0, name=name, topic_id=TOPIC_ID, partitions=partitions)
                if name == "orders"
                else MetadataResponseTopic(error_code=3, name=name)
                for name in wanted
            ],
        )

    def answer(self, address: tuple[str, int], api_key: int, request: Any) -> Any:
        if api_key == ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in (dict.fromkeys(map(int, ApiKey), (0, 99)) | self.versions).items()
            ]
            return ApiVersionsResponse(api_keys=keys)
        node = next(number for number, each in NODES.items() if each == address)
        if api_key != ApiKey.METADATA:
            self.asked.append((node, api_key, request))
        return self.answers[api_key](request, node)


class ScriptedConnection(BlockingConnection):
    def __init__(self, brokers: ScriptedBrokers, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._brokers = brokers
        self._place = (host, port)
        if self._place in brokers.refusing:
            raise ConnectionFailed(f"no broker answers at {self.address}")
        brokers.opened.append(self._place)

    @override
    def send(self, api_key: int, version: int, body: bytes) -> int:
        self._sent = (api_key, version, schema.request_decoder(api_key, version)(bytes(body)))
        return 1

    @override
    def receive(self, correlation_id: int) -> memoryview:
        api_key, version, request = self._sent
        if self._place in self._brokers.closing:
            raise ConnectionClosed(self.address)
        response = self._brokers.answer(self._place, api_key, request)
        if isinstance(response, Exception):
            raise response
        return memoryview(bytes(schema.response_encoder(api_key, version)(response)))

    @override
    def close(self) -> None:
        self._brokers.closed.append(self._place)


def in_turn(*responses: Any) -> Answer:
    """One after the other; the last one again and again."""
    left = list(responses)
    return lambda _request, _node: left.pop(0) if len(left) > 1 else left[0]
