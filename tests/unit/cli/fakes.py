"""Brokers that only answer what a test has told them to, for commands that would ask a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from millrace.cli.options import BrokerAddress
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey

ADDRESS = BrokerAddress(bootstrap="127.0.0.1:1", command_config=None, timeout_s=1.0)

Reply = Callable[[Any], Any]


class FakeBroker:
    """In the place of a `Connection`: what is asked must fit on the wire, and is kept."""

    def __init__(self, replies: Mapping[ApiKey, Reply]) -> None:
        self._replies = replies
        self.asked: list[tuple[ApiKey, Any]] = []
        self.is_closed = False

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        # Raises what a real connection would: for a version that is not there, or a field that is wrong.
        schema.request_encoder(key, version)(request)
        self.asked.append((key, request))
        return self._replies[key](request)

    def close(self) -> None:
        self.is_closed = True

    @contextmanager
    def connected(self, _address: object, *_more: object) -> Iterator[FakeBroker]:
        yield self


def done(result: object = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def failed(code: int, text: str = "it failed") -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code, text)))
    return future
