"""The network that stands in where namespaces are not permitted keeps its word: tests rest on it."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest
from typing_extensions import override

from tests.harness.etcd import lasting_port
from tests.harness.process import eventually
from tests.harness.proxies import Proxies

TIMEOUT_S = 20.0
SILENCE_S = 0.3


class Echo(socketserver.BaseRequestHandler):
    @override
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


def serve_echo(port: int) -> EchoServer:
    server = EchoServer(("127.0.0.1", port), Echo)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    proxies = Proxies()
    yield proxies
    proxies.close()


def connect(port: int) -> socket.socket:
    """As soon as the proxy listens, which it does when it has found its target."""
    found: list[socket.socket] = []

    def is_connected() -> bool:
        try:
            found.append(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
        except ConnectionRefusedError:
            return False
        return True

    eventually(is_connected, TIMEOUT_S, pause_s=0.01)
    return found[0]


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except (ConnectionRefusedError, ConnectionResetError):
        # Reset, if the connection was made in the moment in which the listener went.
        return True
    return False


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)
    return False


@pytest.mark.parametrize("link", [("here", "there"), ("there", "here")])
def test_a_cut_link_is_silent_and_loses_nothing(proxies: Proxies, link: tuple[str, str]) -> None:
    target = lasting_port()
    server = serve_echo(target)
    with connect(proxies.add(("127.0.0.1", target), source="here", target="there")) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        proxies.cut(*link)
        proxies.cut("somebody", "else")
        connection.sendall(b"meanwhile")
        assert is_silent(connection)
        proxies.heal()
        assert connection.recv(100) == b"meanwhile"
    server.shutdown()
    server.server_close()


def test_the_source_is_whoever_the_first_request_says(proxies: Proxies) -> None:
    target = lasting_port()
    server = serve_echo(target)
    port = proxies.add(("127.0.0.1", target), source=None, target="there")
    proxies.cut("broker-1", "there")
    requests = [struct.pack(">ihhih8s", 18, 18, 0, 1, 8, name.encode()) for name in ("broker-1", "broker-2")]
    with connect(port) as cut, connect(port) as whole:
        cut.sendall(requests[0])
        whole.sendall(requests[1])
        assert whole.recv(100) == requests[1]
        assert is_silent(cut)
        proxies.heal()
        assert cut.recv(100) == requests[0]
    server.shutdown()
    server.server_close()


def test_a_target_that_is_gone_refuses_until_it_is_back(proxies: Proxies) -> None:
    target = lasting_port()
    server = serve_echo(target)
    port = proxies.add(("127.0.0.1", target), source="here", target="there")
    connect(port).close()
    server.shutdown()
    server.server_close()
    eventually(lambda: is_refused(port), TIMEOUT_S)
    server = serve_echo(target)
    with connect(port) as connection:
        connection.sendall(b"again")
        assert connection.recv(100) == b"again"
    server.shutdown()
    server.server_close()
