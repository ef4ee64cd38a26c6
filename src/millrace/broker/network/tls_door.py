"""The door of a listener with TLS: accepts clients, and lets them in when their handshake is done. Handshakes
have a deadline, and every address its share of them (fault S11).

Clients are accepted here, and not by the loop's server: that tells nobody of a failed handshake, neither why
it failed nor where it came from, and does all of them at once.

The first message of a client costs about a millisecond of the loop. A handshake begins when that message is
there, and the loop makes a turn between two beginnings: when hundreds log in at once, requests of others are
served between any two of them. So many handshakes may have begun and not ended; those behind them wait with
their bytes in the socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from socket import socket as Socket  # noqa: N812, TID251 - the type of what the loop accepts
from typing import TYPE_CHECKING, Final

from millrace.broker.network.connection import Connection
from millrace.broker.network.tls_listener import UNDER_WAY_MAX, TlsListener
from millrace.core.override import override
from millrace.security.errors import InvalidDistinguishedName, NoRuleMatches
from millrace.security.principals import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.broker.network.login import ListenerLogins
    from millrace.broker.network.server import Server
    from millrace.security.principals import Identity

log = logging.getLogger(__name__)

ACCEPT_AGAIN_S: Final = 0.5
"""After the system gave no connection: most likely there are no descriptors left."""
HANDSHAKE_S_MIN: Final = 0.1
"""What is left at least to a handshake that begins."""
BEGUN_MAX: Final = 1_000
"""Handshakes of a listener that have begun and not ended. Each holds some 50 kB."""


class TlsConnection(Connection):
    """A connection whose client may have shown a certificate."""

    __slots__ = ("_tls",)

    def __init__(
        self, server: Server, listener: str, logins: ListenerLogins | None, tls: TlsListener
    ) -> None:
        super().__init__(server, listener, logins)
        self._tls = tls

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.login is not None:
            # Where clients log in, it is the login that counts.
            return
        try:
            identity = self._tls.identity_of(transport.get_extra_info("ssl_object"))
        except (NoRuleMatches, InvalidDistinguishedName) as error:
            self._tls.failed(self.endpoint.peer_host, error, self.loop.time())
            self._tell_failure(str(error))
            self.abort("nobody by ssl.principal.mapping.rules")
            return
        if identity is not NOBODY and self._is_let_in(identity):
            self.authenticated_as(identity)

    def _is_let_in(self, identity: Identity) -> bool:
        """Tell the audit of a certificate; False if it is closed and cannot be told."""
        access = self.services.access
        auditor = access.auditor
        if auditor is None:
            return True
        refusal = auditor.refusal()
        if refusal is not None and not access.is_super(identity):
            auditor.count_refused()
            self.abort(str(refusal))
            return False
        auditor.logged_in(
            identity, host=self.endpoint.peer_host, listener=self.endpoint.listener, is_encrypted=True
        )
        return True

    def _tell_failure(self, reason: str) -> None:
        auditor = self.services.access.auditor
        if auditor is not None:
            auditor.login_failed(
                "",
                mechanism="TLS",
                host=self.endpoint.peer_host,
                listener=self.endpoint.listener,
                is_encrypted=True,
                reason=reason,
            )


class TlsDoor:
    """The sockets of one listener, and the clients that are not yet in."""

    def __init__(
        self, server: Server, listener: str, tls: TlsListener, logins: ListenerLogins | None
    ) -> None:
        self._server = server
        self._listener = listener
        self._tls = tls
        self._logins = logins
        self._sockets: list[Socket] = []
        self._begun = asyncio.Semaphore(BEGUN_MAX)
        self._beginning = asyncio.Lock()

    def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen; returns the address really bound. Raises OSError."""
        try:
            for family, address in _addresses(host, port):
                # The second address gets the port that the first one has got.
                chosen = self._sockets[0].getsockname()[1] if self._sockets else address[1]
                listening = socket.create_server(  # noqa: TID251 - the loop's own server: see above
                    (address[0], chosen), family=family, backlog=backlog
                )
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            self._server.start_handshake(self._accept(listening))
        bound = self._sockets[0].getsockname()
        return bound[0], bound[1]

    def close(self) -> None:
        """Accept nobody any more; those who start tasks end them."""
        for listening in self._sockets:
            self._server.loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def _accept(self, listening: Socket) -> None:
        loop = self._server.loop
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:
                log.error("no connection can be accepted", extra={"reason": str(error)})
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            self._begin(client, address[0])

    def _begin(self, client: Socket, peer_host: str) -> None:
        tls = self._tls
        wait_s = tls.turns.wait_s(peer_host, self._server.loop.time(), tls.settings.handshake_s_max)
        if wait_s is None or tls.under_way_count >= UNDER_WAY_MAX:
            self._server.count_refused("tls_rate")
            client.close()
            return
        tls.under_way_count += 1
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.start_handshake(self._let_in(client, peer_host, wait_s))

    async def _let_in(self, client: Socket, peer_host: str, wait_s: float) -> None:
        tls, loop = self._tls, self._server.loop
        try:
            if wait_s > 0:
                # The handshake's bytes wait in the socket.
                await asyncio.sleep(wait_s)
            deadline = loop.time() + tls.settings.handshake_s_max
            async with asyncio.timeout_at(deadline):
                await self._first_bytes(client)
                await self._begun.acquire()
            try:
                await self._turn()
                await loop.connect_accepted_socket(
                    lambda: TlsConnection(self._server, self._listener, self._logins, tls),
                    client,
                    ssl=tls.context,
                    ssl_handshake_timeout=max(deadline - loop.time(), HANDSHAKE_S_MIN),
                )
            finally:
                self._begun.release()
        except OSError as error:
            tls.failed(peer_host, error, loop.time())
            client.close()
            return
        except BaseException:
            client.close()
            raise
        finally:
            tls.under_way_count -= 1
        tls.handshakes_count += 1

    async def _first_bytes(self, client: Socket) -> None:
        """Wait until the client has sent something, or has gone."""
        loop = self._server.loop
        there = asyncio.Event()
        loop.add_reader(client, there.set)
        try:
            await there.wait()
        finally:
            loop.remove_reader(client)

    async def _turn(self) -> None:
        """Wait until the loop has made a turn since the last handshake began."""
        async with self._beginning:
            await asyncio.sleep(0)


def _addresses(host: str, port: int) -> Sequence[tuple[int, tuple[str, int]]]:
    """What to listen on; without a host, all interfaces, by both versions of IP where there are both."""
    if host:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return [(family, (str(address[0]), port)) for family, _, _, _, address in found]
    both = [(int(socket.AF_INET), ("0.0.0.0", port))]
    if socket.has_dualstack_ipv6():
        both.append((int(socket.AF_INET6), ("::", port)))
    return both
