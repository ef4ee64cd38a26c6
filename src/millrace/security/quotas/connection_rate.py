"""How many connections a second are taken: of an address, of a listener, of the broker.

An address over its rate is let in, held for a while and cut off, so that it does not come again at once; it
does not count for the listener and the broker then. Over the rate of the listener or the broker nobody is cut
off: the next connections are taken later. The listener between brokers is not held up by clients of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from millrace.security.quotas.rates import KAFKAS_WINDOW, Rate, Window, bounded_throttle_ms

ADDRESSES_MAX: Final = 10_000
"""Addresses whose rates are kept. Beyond it those are forgotten that were silent for a window."""


class Admission(NamedTuple):
    """What to do with a connection that has come."""

    is_refused: bool = False
    """Whether it is to be closed after the delay."""
    delay_ms: int = 0
    """How long to hold it, or to wait before the next one is taken."""


class ConnectionRates:
    """The rates of one broker. Times are milliseconds of any clock that does not go back."""

    def __init__(
        self,
        rate_of_address: Callable[[str], float | None],
        *,
        protected_listener: str | None = None,
        broker_rate: float | None = None,
        window: Window = KAFKAS_WINDOW,
    ) -> None:
        """`protected_listener`: that of the brokers, if there are others beside it."""
        self._window = window
        self.broker_rate = broker_rate
        """`max.connection.creation.rate`, None for any number."""
        self.listener_rates: dict[str, float] = {}
        """The same for single listeners."""
        self._rate_of_address = rate_of_address
        self._protected = protected_listener
        self._broker = Rate(window)
        self._listeners: dict[str, Rate] = {}
        self._addresses: dict[str, Rate] = {}

    def admit(self, listener: str, address: str, now_ms: int) -> Admission:
        """Count a connection, and say what to do with it."""
        refused_ms = self._of_address(address, now_ms)
        if refused_ms:
            return Admission(is_refused=True, delay_ms=refused_ms)
        delay_ms = 0
        if listener != self._protected:
            delay_ms = self._counted(self._broker, self.broker_rate, now_ms)
        rate = self._listeners.setdefault(listener, Rate(self._window))
        delay_ms = max(delay_ms, self._counted(rate, self.listener_rates.get(listener), now_ms))
        return Admission(delay_ms=delay_ms)

    def _of_address(self, address: str, now_ms: int) -> int:
        bound = self._rate_of_address(address)
        if bound is None:
            return 0
        rate = self._addresses.get(address)
        if rate is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses = {
                    each: found for each, found in self._addresses.items() if not found.is_silent(now_ms)
                }
            rate = self._addresses[address] = Rate(self._window)
        throttle_ms = self._counted(rate, bound, now_ms)
        if throttle_ms:
            # It is not taken, so it does not count.
            rate.record(-1, now_ms)
        return throttle_ms

    def _counted(self, rate: Rate, bound: float | None, now_ms: int) -> int:
        rate.record(1, now_ms)
        return 0 if bound is None else bounded_throttle_ms(rate.throttle_ms(bound, now_ms), self._window)
