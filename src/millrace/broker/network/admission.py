"""Which connections are let in, which wait, and which have to go.

A client sees what it sees of Kafka, whose acceptor stops for a while: a connection that comes too early, or
when there are enough, is open, and nothing is read from it until its turn. They take turns in the order in
which they came, each listener's by themselves. Only an address that has too many is refused at once, and one
that comes too fast is held for a moment and then closed, so that it does not come again at once.

The listener between brokers does not wait for clients of others: when there are enough connections, one of
another listener is closed for it, that which was silent for longest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millrace.security.quotas.connection_rate import ConnectionRates
from millrace.security.quotas.rates import KAFKAS_WINDOW, Window

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection

log: Final = logging.getLogger(__name__)

WAITING_MAX: Final = 1_024
"""Connections of one listener that wait at once, and of all listeners that are held before they are closed.
Others are closed when they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections there may be, and how many a second may come. None is any number."""

    connections_max: int
    per_ip_max: int
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    listener_max: Mapping[str, int] = field(default_factory=dict)
    listener_rates: Mapping[str, float] = field(default_factory=dict)
    protected_listener: str | None = None
    """That of the brokers, if there are others beside it."""
    window: Window = KAFKAS_WINDOW
    """Over which time rates are taken. It stays what it was at the start."""


class Admission:
    """The connections of one broker: those that are in, those that wait, and those that are held to be
    closed."""

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        ticks: Callable[[], float],
        rate_of_address: Callable[[str], float | None],
        count_refused: Callable[[str], None],
    ) -> None:
        self._ticks = ticks
        self._count_refused = count_refused
        self._rates = ConnectionRates(
            rate_of_address, protected_listener=limits.protected_listener, window=limits.window
        )
        self._by_ip: dict[str, int] = {}
        self._by_listener: dict[str, int] = {}
        """How many are in."""
        self._known: dict[Connection, bool] = {}
        """All, and whether they are in."""
        self._in_count = 0
        self._queues: dict[str, deque[Connection]] = {}
        """Those that wait, by listener."""
        self._turns: dict[str, asyncio.TimerHandle] = {}
        """When the first of a queue may come in, where that is a matter of time."""
        self._doomed: dict[Connection, asyncio.TimerHandle] = {}
        self.throttled: dict[str, int] = {}
        """How many had to wait for their turn, or were closed because their address came too fast."""
        self.reconfigure(limits)

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for queue in self._queues.values()) + len(self._doomed)

    def reconfigure(self, limits: ConnectionLimits) -> None:
        """Take new limits for those who come from now on, and for those who wait."""
        self.limits = limits
        self._rates.broker_rate = limits.rate
        self._rates.listener_rates = dict(limits.listener_rates)
        self._let_in_all()

    def enter(self, connection: Connection) -> bool:
        """A connection has come: let it in, now or later. False if it has to go."""
        ip, listener = connection.endpoint.peer_host, connection.endpoint.listener
        limits = self.limits
        ip_count = self._by_ip.get(ip, 0)
        per_ip_max = limits.per_ip_overrides.get(ip, limits.per_ip_max)
        if ip_count >= per_ip_max:
            return self._refuse(ip, f"max.connections.per.ip={per_ip_max} is reached")
        queue = self._queues.setdefault(listener, deque())
        if len(queue) >= WAITING_MAX:
            return self._refuse(ip, f"{WAITING_MAX} others wait already")
        self._by_ip[ip] = ip_count + 1
        self._known[connection] = False
        queue.append(connection)
        self._let_in(listener, queue, connection)
        if not self._known[connection]:
            connection.hold()
            # Some transports begin to read behind this call, whatever was said in it.
            connection.loop.call_soon(connection.stay_paused)
            if connection not in self._doomed:
                self._count("waited")
        return True

    def leave(self, connection: Connection) -> None:
        """The connection has ended."""
        was_in = self._known.pop(connection, None)
        if was_in is None:
            return
        listener = connection.endpoint.listener
        _one_less(self._by_ip, connection.endpoint.peer_host)
        if was_in:
            self._in_count -= 1
            _one_less(self._by_listener, listener)
            self._let_in_all()
            return
        timer = self._doomed.pop(connection, None)
        if timer is not None:
            timer.cancel()
        else:
            self._queues[listener].remove(connection)

    def _let_in_all(self) -> None:
        for listener, queue in self._queues.items():
            if queue:
                self._let_in(listener, queue)

    def _let_in(self, listener: str, queue: deque[Connection], newest: Connection | None = None) -> None:
        """Let those in whose turn it is. `newest` has just come, and is not held yet."""
        while queue and listener not in self._turns and self._has_room(listener):
            first = queue[0]
            decision = self._rates.admit(listener, first.endpoint.peer_host, round(self._ticks() * 1000))
            if decision.is_refused:
                self._doom(queue.popleft(), decision.delay_ms)
            elif decision.delay_ms:
                self._turns[listener] = first.loop.call_later(
                    decision.delay_ms / 1000, self._turn_has_come, listener, queue
                )
            else:
                self._admit(queue.popleft(), is_held=first is not newest)

    def _turn_has_come(self, listener: str, queue: deque[Connection]) -> None:
        del self._turns[listener]
        if queue and self._has_room(listener):
            # It was counted when it was made to wait.
            self._admit(queue.popleft(), is_held=True)
        self._let_in(listener, queue)

    def _has_room(self, listener: str) -> bool:
        limits = self.limits
        own_max = limits.listener_max.get(listener)
        if own_max is not None and self._by_listener.get(listener, 0) >= own_max:
            return False
        return listener == limits.protected_listener or self._in_count < limits.connections_max

    def _admit(self, connection: Connection, *, is_held: bool) -> None:
        self._known[connection] = True
        self._in_count += 1
        listener = connection.endpoint.listener
        self._by_listener[listener] = self._by_listener.get(listener, 0) + 1
        if is_held:
            connection.let_go()
        if self._in_count > self.limits.connections_max:
            self._close_one_for(listener)

    def _close_one_for(self, listener: str) -> None:
        """Brokers come in when there are enough others: one of those has to go."""
        others = [each for each, is_in in self._known.items() if is_in and each.endpoint.listener != listener]
        if others:
            self._count_refused("connection_limit")
            min(others, key=lambda each: each.idle_since).abort(
                f"max.connections={self.limits.connections_max} is reached, and a broker has come"
            )

    def _doom(self, connection: Connection, delay_ms: int) -> None:
        """The address comes too fast. It is held before it is closed, or it would be back at once."""
        self._count("address_rate")
        reason = "its address opens connections too fast"
        delay_s = delay_ms / 1000 if len(self._doomed) < WAITING_MAX else 0.0
        self._doomed[connection] = connection.loop.call_later(delay_s, connection.abort, reason)

    def _refuse(self, ip: str, reason: str) -> bool:
        self._count_refused("connection_limit")
        log.warning("connection refused", extra={"peer": ip, "reason": reason})
        return False

    def _count(self, what: str) -> None:
        self.throttled[what] = self.throttled.get(what, 0) + 1


def _one_less(counts: dict[str, int], name: str) -> None:
    if counts[name] > 1:
        counts[name] -= 1
    else:
        del counts[name]
