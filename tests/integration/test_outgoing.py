"""The sending side on real sockets: whatever the peer's pace, every byte arrives once and in order."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from millrace.broker.network.connection import Connection
from millrace.broker.network.outgoing import (
    SENDFILE_MIN_BYTES,
    TCP_CONGESTION,
    UNPACED,
    Chunk,
    OpenFile,
    Outgoing,
    OutgoingFailed,
)
from millrace.broker.network.recognition import Recognition
from millrace.broker.network.server import Server
from millrace.broker.network.throttling import Throttling
from millrace.core.override import override
from millrace.core.world import World
from millrace.security.acls.decisions import Access
from tests.harness.tls_files import Authority


class DiskFile:
    """As the log's handles: a descriptor, and reads at a position."""

    def __init__(self, path: Path, *, has_descriptor: bool = True) -> None:
        self._number = os.open(path, os.O_RDONLY)
        self._has_descriptor = has_descriptor

    def __del__(self) -> None:
        os.close(self._number)

    def fileno(self) -> int:
        return self._number if self._has_descriptor else -1

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._number, size_bytes, position)


class Slice:
    def __init__(self, file: DiskFile, position: int, size_bytes: int) -> None:
        self.file: OpenFile | None = file
        self.position = position
        self.size_bytes = size_bytes


class Sender(asyncio.Protocol):
    def __init__(self) -> None:
        self.failure: OutgoingFailed | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.out = Outgoing(cast("asyncio.Transport", transport))
        self.out.begin()

    @override
    def pause_writing(self) -> None:
        self.out.pause()

    @override
    def resume_writing(self) -> None:
        try:
            self.out.resume()
        except OutgoingFailed as failure:
            self.failure = failure


async def exchange(messages: list[bytes | list[Chunk]], expected_size: int, *, is_slow: bool) -> bytes:
    """Send everything at once to a peer that reads at its own pace; returns what it got."""
    loop = asyncio.get_running_loop()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    peer.connect(listener.getsockname())
    accepted, _ = listener.accept()
    listener.close()
    peer.setblocking(False)
    transport, sender = await loop.connect_accepted_socket(Sender, accepted)
    received = bytearray()
    try:
        for message in messages:
            if isinstance(message, bytes):
                sender.out.write(message)
            else:
                sender.out.write_chunks(message)
        while len(received) < expected_size:
            received += await loop.sock_recv(peer, 8_192 if is_slow else 1 << 20)
        assert sender.failure is None
        assert sender.out.sent_bytes == expected_size
    finally:
        sender.out.close()
        transport.abort()
        peer.close()
    return bytes(received)


Runner = Callable[[Coroutine[Any, Any, bytes]], bytes]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_slow", [False, True], ids=["fast peer", "slow peer"])
@pytest.mark.parametrize("has_descriptor", [False, True], ids=["copied", "sendfile"])
def test_bytes_and_slices_arrive_in_order(
    tmp_path: Path, run: Runner, is_slow: bool, has_descriptor: bool
) -> None:
    source = random.Random(7)
    content = source.randbytes(6 << 20)
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = DiskFile(path, has_descriptor=has_descriptor)
    messages: list[bytes | list[Chunk]] = []
    expected = bytearray()
    for number in range(40):
        if number % 3 == 0:
            data = source.randbytes(source.choice([1, 100, 300_000]))
            messages.append(data)
            expected += data
            continue
        chunks: list[Chunk] = []
        for _ in range(source.randrange(1, 4)):
            head = source.randbytes(20)
            size = source.choice([0, 1, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES, 200_000, 1_500_000])
            position = source.randrange(len(content) - size)
            chunks += [head, Slice(file, position, size)]
            expected += head + content[position : position + size]
        messages.append(chunks)
    assert run(exchange(messages, len(expected), is_slow=is_slow)) == bytes(expected)


def test_a_slice_that_was_cut_off_ends_the_connection_instead_of_sending_less(tmp_path: Path) -> None:
    """A response that is shorter than its length says would shift every later one."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 20_000)
    messages: list[bytes | list[Chunk]] = [[b"head", Slice(DiskFile(path), 0, 40_000)]]
    with pytest.raises(OutgoingFailed):
        uvloop.run(exchange(messages, 40_004, is_slow=False))


async def congestion_control(peer_host: str, default: bytes, authority: Authority | None = None) -> bytes:
    """What a broker's connection is left with, where the system chooses `default`. An authority stands for
    TLS."""
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []

    def admit(connection: Connection) -> bool:
        connections.append(connection)
        return True

    server = SimpleNamespace(
        dispatcher=SimpleNamespace(routes={}),
        services=SimpleNamespace(
            access=Access(), wakeups=None, recognition=Recognition(World()), throttling=Throttling()
        ),
        loop=loop,
        ticks=float,
        start_task=None,
        receive_buffer=memoryview(bytearray(1024)),
        frame_bytes_max=1024,
        admit=admit,
        forget=lambda _connection: None,
    )
    listener = socket.socket()
    listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, default)
    listener.bind(("127.0.0.1", 0))
    context = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue())
    serving = await loop.create_server(
        lambda: Connection(cast("Server", server), "PLAINTEXT"), sock=listener, ssl=context
    )
    peer = socket.socket()
    peer.bind((peer_host, 0))
    peer.setblocking(False)
    try:
        await loop.sock_connect(peer, listener.getsockname())
        if authority is not None:
            await loop.create_connection(
                asyncio.Protocol, sock=peer, ssl=authority.client(), server_hostname="localhost"
            )
        async with asyncio.timeout(30):
            while not connections:
                await asyncio.sleep(0.01)
        transport = connections[0]._transport
        assert transport is not None
        accepted = transport.get_extra_info("socket")
        return bytes(accepted.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)).rstrip(b"\0")
    finally:
        peer.close()
        serving.close()
        for connection in connections:
            connection.abort("the test ends")


def test_only_peers_on_this_machine_are_sent_to_without_pacing(tmp_path: Path) -> None:
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_bytes().split()
    default = next((name for name in allowed if name != UNPACED), UNPACED)
    assert uvloop.run(congestion_control("127.0.0.1", default)) == UNPACED
    assert uvloop.run(congestion_control("127.0.0.1", default, Authority(tmp_path))) == UNPACED
    # Another address is another machine, as far as a broker can tell.
    assert uvloop.run(congestion_control("127.0.0.2", default)) == default
