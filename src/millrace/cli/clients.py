"""Connections of the command line to brokers, through confluent-kafka, with its failures in one line each."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from millrace.cli.command_config import properties_of, security_of, servers_of
from millrace.cli.options import BrokerAddress
from millrace.cli.output import fail_with
from millrace.client.errors import NotReached
from millrace.client.properties import ClientProperties
from millrace.core.errors import MillraceError

CONNECT_TIMEOUT_S: Final = 5.0
OPAQUE_TOKEN_S: Final = 300.0
NO_ANSWER: Final = "no broker answers at "
NEEDS_SECURITY: Final = "if its listener uses TLS or SASL, say how to log in by --command-config"
_CUT_OFF: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""What librdkafka says of a listener that ends its connections."""
# librdkafka wants a group's name. We never join that group, and commit nothing under it.
_GROUP_ID: Final = "millrace-cli"
_Answer = TypeVar("_Answer")


class RequestFailed(MillraceError):
    """The broker refused, or did not answer."""


def admin_client(address: BrokerAddress) -> AdminClient:
    return AdminClient(_client_config(address))


def client_properties(address: BrokerAddress) -> dict[str, str]:
    """The settings of a client as text, for librdkafka itself; callbacks are left out."""
    config = _client_config(address)
    config |= _own_tokens(address)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in config.items()
        if not callable(value)
    }


def producer(address: BrokerAddress, settings: dict[str, Any]) -> Producer:
    with explained():
        return Producer(_client_config(address) | settings)


def consumer(address: BrokerAddress, settings: dict[str, Any]) -> Consumer:
    fixed = {"group.id": _GROUP_ID, "enable.auto.commit": False, "enable.auto.offset.store": False}
    with explained():
        return Consumer(_client_config(address) | settings | fixed)


def cluster_metadata(client: AdminClient | Consumer, address: BrokerAddress) -> ClusterMetadata:
    """All topics and brokers; never creates a topic, as asking for one by name may."""
    try:
        with explained():
            return client.list_topics(timeout=address.timeout_s)
    except RequestFailed as error:
        if address.command_config is None and error_code(error) in _CUT_OFF:
            raise RequestFailed(f"{error}; {NEEDS_SECURITY}") from error.__cause__
        raise


def answer_of(future: Future[_Answer], address: BrokerAddress, *, subject: str) -> _Answer:
    """The result of an admin request, or a failure that names what was asked about."""
    try:
        return future.result(timeout=address.timeout_s + 1)
    except KafkaException as error:
        raise RequestFailed(f"{subject}: {describe_error(error)}") from error
    except FutureTimeout as error:
        raise RequestFailed(f"{subject}: no answer within {address.timeout_s:g} s") from error


def report_each(
    futures: Mapping[str, Future[Any]],
    address: BrokerAddress,
    *,
    done: str,
    failure: Callable[[str, RequestFailed], str | None],
) -> None:
    """Print the outcome of each request. One failure does not hide the others; `failure` gives its text, or
    None if the command does not count it as one."""
    failures: list[str] = []
    for name, future in futures.items():
        try:
            answer_of(future, address, subject=name)
        except RequestFailed as error:
            text = failure(name, error)
            if text is not None:
                failures.append(text)
        else:
            click.echo(f"{done} {name}")
    fail_with(failures)


@contextmanager
def explained(subject: str = "") -> Iterator[None]:
    """Turn librdkafka's exceptions into one line each."""
    try:
        yield
    except KafkaException as error:
        prefix = f"{subject}: " if subject else ""
        raise RequestFailed(prefix + describe_error(error)) from error


def error_code(error: BaseException | None) -> int | None:
    """The Kafka error code behind a failure, if there is one."""
    cause = error.__cause__ if isinstance(error, RequestFailed) else error
    if isinstance(cause, KafkaException) and cause.args and isinstance(cause.args[0], KafkaError):
        return cause.args[0].code()
    return None


def describe_error(error: KafkaException | KafkaError) -> str:
    kafka_error = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(kafka_error, KafkaError):
        return str(kafka_error)
    text = kafka_error.str() or kafka_error.name()
    # Codes below zero are librdkafka's own, whose names say less than the text.
    return text if kafka_error.code() < 0 else f"{text} ({kafka_error.name()})"


def _client_config(address: BrokerAddress) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": address.bootstrap,
        "client.id": "millrace-cli",
        "socket.timeout.ms": max(1000, int(address.timeout_s * 1000)),
        # The command reports its own errors; librdkafka would add a log line for each attempt.
        "log_level": 0,
        "error_cb": lambda _error: None,
        "log.connection.close": False,
        "socket.nagle.disable": True,
    }
    properties = properties_of(address)
    config |= properties.for_librdkafka()
    if properties.takes_tokens:
        config["oauth_cb"] = _token_callback(address)
    config["bootstrap.servers"] = servers_of(address)
    _require_reachable(address, properties)
    return config


def _own_tokens(address: BrokerAddress) -> dict[str, str]:
    """How librdkafka fetches tokens by itself, where it can be given no callback."""
    properties = properties_of(address)
    if not properties.takes_tokens:
        return {}
    if not properties.values.get("sasl.oauthbearer.token.endpoint.url", "").startswith("https:"):
        raise RequestFailed("this command takes tokens of OAUTHBEARER from an https endpoint alone")
    of_oauth = {
        name: each for name, each in properties.values.items() if name.startswith("sasl.oauthbearer.")
    }
    return of_oauth | {"sasl.oauthbearer.method": "oidc"}


def _token_callback(address: BrokerAddress) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    """Gives librdkafka the tokens that our own connections log in with: from the same file or endpoint."""
    security = security_of(address)
    tokens = security.tokens
    assert tokens is not None, security.mechanism

    def take(_config: str) -> tuple[str, float, str, dict[str, str]]:
        token = tokens.take()
        return token, _expiry_s(token), "", dict(security.extensions)

    return take


def _expiry_s(token: str) -> float:
    """When a token ends, as it says itself; a few minutes from now for one that is no JSON Web Token."""
    try:
        payload = token.split(".")[1]
        return float(orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (ValueError, IndexError, KeyError, TypeError):
        return time.time() + OPAQUE_TOKEN_S


def _require_reachable(address: BrokerAddress, properties: ClientProperties) -> None:
    """Fail at once with the reason if nobody listens, or lets us in: librdkafka would retry until its
    timeout, and then say less."""
    timeout_s = min(CONNECT_TIMEOUT_S, address.timeout_s)
    reasons: list[str] = []
    for server in servers_of(address).split(","):
        host, port = split_host_port(server.strip())
        try:
            if properties.is_secure and not properties.has_pkcs12:
                _log_in_once(host, port, address)
            else:
                socket.create_connection((host, port), timeout=timeout_s).close()
        except NotReached as error:
            reasons.append(str(error).removeprefix(NO_ANSWER))
        except OSError as error:
            reasons.append(f"{server.strip()}: {error.strerror or error}")
        else:
            return
    raise RequestFailed(f"{NO_ANSWER}{'; '.join(reasons)}")


def _log_in_once(host: str, port: int, address: BrokerAddress) -> None:
    from millrace.cli.broker_requests import connect

    connect(host, port, address).close()


def split_host_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT`, with an optional `PROTOCOL://` in front."""
    host, separator, port = text.rpartition("//")[2].rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise RequestFailed(f"{text!r} is not an address of the form HOST:PORT")
    return host.strip("[]"), int(port)
