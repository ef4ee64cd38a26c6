"""A network in memory that behaves as TCP does: bytes come in order or not at all, late, and in other pieces
than they were sent in; connections break, hang, or break on one side only.

Bytes that a cut link does not carry wait, as a sender's retransmissions do, and arrive when the link heals,
or the sender gives up. Data for a process that is gone is answered with a reset, if its machine is up.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from millrace.core.override import override
from millrace.sim.process import Process, State, current_process

if TYPE_CHECKING:
    from millrace.sim.loop import SimLoop

WINDOW_BYTES: Final = 256 * 1024
"""How many bytes may be sent and not yet read by the peer's program; more wait in the sender's transport."""
HIGH_WATER_BYTES: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 10.0
CONNECT_RETRY_S: Final = 0.25
"""How long TCP waits before it tries again the first time; each further wait is twice as long."""
GIVE_UP_S: Final = (10.0, 40.0)
"""How long a sender retransmits before it takes the connection for dead."""
RETRANSMIT_S: Final = (0.2, 1.0)
"""How long the waiting bytes take to come through after a link has healed."""
SPLIT_CHANCE: Final = 0.05

Link = tuple[str, str]
"""The way from one host to another; the way back is another link."""


class _Mark:
    """What a connection carries beside bytes."""

    def __init__(self, name: str) -> None:
        self.name = name


END: Final = _Mark("end")
RESET: Final = _Mark("reset")
Segment = bytes | _Mark


class SimServer(asyncio.AbstractServer):
    """One listener."""

    def __init__(
        self,
        network: Network,
        process: Process,
        address: tuple[str, int],
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self.process = process
        self.address = address
        self.factory = factory
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    @override
    def close(self) -> None:
        self.process.servers.pop(self, None)
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]

    @override
    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    @override
    def is_serving(self) -> bool:
        return self in self.process.servers

    @override
    async def start_serving(self) -> None:
        """Nothing is left to do: it serves from the start."""

    @override
    async def serve_forever(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("only a cancellation ends this")

    @override
    async def wait_closed(self) -> None:
        """Closing takes no time."""


class SimTransport(asyncio.Transport):
    """One end of a connection. `peer` is the other end, and lives in another process or in the same one."""

    peer: SimTransport

    def __init__(
        self,
        network: Network,
        process: Process,
        protocol: asyncio.BaseProtocol,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self._loop = network.loop
        self.process = process
        self.host = local[0]
        self._remote_host = remote[0]
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._inbox: deque[Segment] = deque()
        self.stalled: deque[Segment] = deque()
        """The segments that are on their way to this end, behind a cut."""
        self._outbox = bytearray()
        self._in_flight = 0
        self._last_arrival = 0.0
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_made = False
        self._is_deaf = False
        self._is_closing = False
        self.is_closed = False
        process.transports[self] = None

    def connected(self) -> None:
        """Tell the protocol, then give it what has come already. This runs in the transport's process."""
        if self.is_closed:
            return
        self._is_made = True
        self._protocol.connection_made(self)
        self._deliver()

    # Sending.

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if not self._outbox and self._in_flight + len(data) <= WINDOW_BYTES:
            self._in_flight += len(data)
            self._send(bytes(data))
            return
        self._outbox += data
        self._fill_window()
        if len(self._outbox) > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def _fill_window(self) -> None:
        room = WINDOW_BYTES - self._in_flight
        if room > 0 and self._outbox:
            piece = bytes(self._outbox[:room])
            del self._outbox[:room]
            self._in_flight += len(piece)
            self._send(piece)

    def _send(self, segment: Segment) -> None:
        arrival = max(
            self._last_arrival, self._loop.time() + self._network.latency(self.host, self._remote_host)
        )
        self._last_arrival = arrival
        self._loop.call_at(arrival, self.peer._arrive, segment, context=self._loop.kernel)

    def _window_opens(self) -> None:
        """The peer has read something. This runs in the transport's process."""
        if self.is_closed:
            return
        self._fill_window()
        if self._is_writing_paused and len(self._outbox) <= self._low:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._outbox:
            self._finish_closing()

    # Receiving, as the machine does it.

    def _arrive(self, segment: Segment) -> None:
        network = self._network
        if self._is_deaf and segment is not RESET:
            return
        if self.stalled or network.is_cut(self._remote_host, self.host):
            self._stall(segment)
        else:
            self._accept(segment)

    def _stall(self, segment: Segment) -> None:
        if self.peer.process.state == State.DEAD:
            # Nobody is left to send the segment again.
            return
        if not self.stalled:
            self._network.stalled[self] = None
            patience = self._network.chance.uniform(*GIVE_UP_S)
            self._loop.call_later(patience, self._sender_gives_up, segment, context=self._loop.kernel)
        self.stalled.append(segment)

    def _sender_gives_up(self, first: Segment) -> None:
        if self.stalled and self.stalled[0] is first:
            self.stalled.clear()
            self._network.stalled.pop(self, None)
            self.peer.break_off(TimeoutError(110, "the peer does not answer"))

    def retransmit(self) -> None:
        """Take in what waits, if the link has healed."""
        if not self.stalled or self._network.is_cut(self._remote_host, self.host):
            return
        self._network.stalled.pop(self, None)
        stalled, self.stalled = self.stalled, deque()
        if self.peer.process.state != State.DEAD:
            for segment in stalled:
                self._accept(segment)

    def _accept(self, segment: Segment) -> None:
        if self.is_closed or self.process.state == State.DEAD:
            if segment is not RESET and not self.peer.is_closed:
                self._send(RESET)
            return
        self._inbox.append(segment)
        if self.process.state == State.RUNNING:
            self.process.context.run(self._deliver)
        else:
            self._loop.call_soon(self._deliver, context=self.process.context)

    # Receiving, as the program does it.

    def _deliver(self) -> None:
        inbox = self._inbox
        while inbox and self._is_made and not self.is_closed:
            segment = inbox[0]
            if isinstance(segment, bytes):
                if self._is_reading_paused or self._is_closing:
                    return
                inbox.popleft()
                self._hand_in(segment)
            else:
                if segment is END and self._is_reading_paused:
                    return
                inbox.popleft()
                self._take_mark(segment)

    def _hand_in(self, data: bytes) -> None:
        chance = self._network.chance
        if len(data) > 1 and chance.random() < SPLIT_CHANCE:
            at = chance.randrange(1, len(data))
            self._inbox.appendleft(data[at:])
            data = data[:at]
        size = len(data)
        if not self._is_buffered:
            self._protocol.data_received(data)  # type: ignore[attr-defined]
        else:
            buffer: Any = self._protocol.get_buffer(-1)  # type: ignore[attr-defined]
            if len(buffer) < size:
                size = len(buffer)
                self._inbox.appendleft(data[size:])
                data = data[:size]
            buffer[:size] = data
            self._protocol.buffer_updated(size)  # type: ignore[attr-defined]
        sender = self.peer
        sender._in_flight -= size
        if sender._outbox:
            delay = self._network.latency(self.host, self._remote_host)
            self._loop.call_later(delay, sender._window_opens, context=sender.process.context)

    def _take_mark(self, mark: _Mark) -> None:
        if mark is RESET:
            self.break_off(ConnectionResetError(104, "the peer reset the connection"))
        elif not self._protocol.eof_received():  # type: ignore[attr-defined]
            self.close()

    # Flow and end.

    @override
    def pause_reading(self) -> None:
        self._is_reading_paused = True

    @override
    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._loop.call_soon(self._deliver)

    @override
    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    @override
    def get_write_buffer_size(self) -> int:
        return len(self._outbox)

    @override
    def can_write_eof(self) -> bool:
        return False

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    @override
    def is_closing(self) -> bool:
        return self._is_closing

    @override
    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._outbox:
                self._finish_closing()

    def _finish_closing(self) -> None:
        self._send(END)
        self._loop.call_soon(self._lost, None)

    @override
    def abort(self) -> None:
        if self.is_closed:
            return
        self._is_closing = True
        self._outbox.clear()
        # Nobody sends again what the peer has not got yet.
        self.peer.stalled.clear()
        self._network.stalled.pop(self.peer, None)
        self._send(RESET)
        self._loop.call_soon(self._lost, None)

    def break_off(self, error: Exception) -> None:
        """The machine found the connection dead."""
        if not self.is_closed:
            self._is_closing = True
            self._outbox.clear()
            self._loop.call_soon(self._lost, error, context=self.process.context)

    def _lost(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.process.transports.pop(self, None)
        if self._is_made:
            self._protocol.connection_lost(error)

    def vanish(self, *, with_reset: bool) -> None:
        """The process of this end is gone. Its machine resets the connection, unless it went down as well.

        What was on its way may still arrive, or not: a reset makes the peer forget what it has not read."""
        self.is_closed = self._is_closing = True
        self.peer._is_deaf = self._network.chance.random() < 0.5
        if with_reset:
            self._send(RESET)


class Network:
    """All hosts, the links between them, and who listens where."""

    loop: SimLoop

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.latency_s = (0.000_1, 0.001)
        self.slow_links: dict[Link, float] = {}
        """How many seconds a link takes at least."""
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.stalled: dict[SimTransport, None] = {}
        self._cuts: dict[Link, None] = {}
        self._down: dict[str, None] = {}
        self._refusing: dict[str, None] = {}
        self._next_port = 40_000

    # Faults.

    def cut(self, source: str, target: str, *, both_ways: bool = True) -> None:
        """Let nothing from one host reach the other any more."""
        self._cuts[source, target] = None
        if both_ways:
            self._cuts[target, source] = None

    def heal(self, source: str, target: str) -> None:
        self._cuts.pop((source, target), None)
        self._cuts.pop((target, source), None)
        self._retransmit_soon()

    def heal_all(self) -> None:
        self._cuts.clear()
        self._refusing.clear()
        self.slow_links.clear()
        self._retransmit_soon()

    def refuse(self, host: str) -> None:
        """Refuse every new connection to this host, whoever listens there; open ones live on."""
        self._refusing[host] = None

    def stop_refusing(self, host: str) -> None:
        self._refusing.pop(host, None)

    def take_down(self, host: str) -> None:
        self._down[host] = None

    def bring_up(self, host: str) -> None:
        self._down.pop(host, None)
        self._retransmit_soon()

    def reset_connections(self, first: Process, second_host: str) -> None:
        """Break every connection between a process and a host, at both ends."""
        for transport in list(first.transports):
            if transport.peer.host == second_host:
                error = ConnectionResetError(104, "a box in between reset the connection")
                transport.break_off(error)
                transport.peer.break_off(error)

    def is_cut(self, source: str, target: str) -> bool:
        return bool(self._cuts or self._down) and (
            (source, target) in self._cuts or source in self._down or target in self._down
        )

    def _retransmit_soon(self) -> None:
        for transport in self.stalled:
            delay = self.chance.uniform(*RETRANSMIT_S)
            self.loop.call_later(delay, transport.retransmit, context=self.loop.kernel)

    def latency(self, source: str, target: str) -> float:
        least, most = self.latency_s
        seconds = least + (most - least) * self.chance.random()
        if self.slow_links:
            seconds += self.slow_links.get((source, target), 0.0)
        return seconds

    # For the loop.

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> SimServer:
        process = current_process()
        address = (host or process.host, port)
        if address in self.listeners:
            raise OSError(98, f"address already in use: {address[0]}:{port}")
        server = SimServer(self, process, address, factory)
        self.listeners[address] = server
        process.servers[server] = None
        return server

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        process = current_process()
        await asyncio.sleep(self.latency(process.host, host))
        deadline = self.loop.time() + CONNECT_TIMEOUT_S
        retry_s = CONNECT_RETRY_S
        while self.is_cut(process.host, host) or self.is_cut(host, process.host):
            if self.loop.time() >= deadline:
                raise TimeoutError(110, f"connecting to {host}:{port} timed out")
            await asyncio.sleep(min(retry_s, deadline - self.loop.time()))
            retry_s *= 2
        server = self.listeners.get((host, port))
        await asyncio.sleep(self.latency(host, process.host))
        if server is None or server.process.state == State.DEAD or host in self._refusing:
            raise ConnectionRefusedError(111, f"connection to {host}:{port} refused")
        self._next_port += 1
        local = (process.host, self._next_port)
        protocol = factory()
        ours = SimTransport(self, process, protocol, local, (host, port))
        theirs = SimTransport(self, server.process, asyncio.BaseProtocol(), (host, port), local)
        ours.peer, theirs.peer = theirs, ours
        # The other machine accepts at once; its program hears of it when its turn comes.
        self.loop.call_soon(_accepted, server, theirs, context=server.process.context)
        ours.connected()
        return ours, protocol


def _accepted(server: SimServer, transport: SimTransport) -> None:
    if not transport.is_closed:
        transport.set_protocol(server.factory())
        transport.connected()
