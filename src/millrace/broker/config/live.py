"""The configuration that counts at this moment: the metadata may set other values while the broker runs."""

from __future__ import annotations

from collections.abc import Callable

from millrace.broker.config.config import BrokerConfig
from millrace.metadata.commands import Policy

ConfigCallback = Callable[[BrokerConfig, BrokerConfig], None]


class LiveConfig:
    """All parts of a broker share one: they are built with what it says then, and subscribe to hear of
    changes."""

    def __init__(self, config: BrokerConfig) -> None:
        self.now = config
        self._callbacks: list[ConfigCallback] = []

    def policy(self) -> Policy:
        """What the controller's decisions depend on now."""
        return self.now.policy()

    def subscribe(self, callback: ConfigCallback) -> None:
        """Call back with (old, new) whenever something is set differently, in the order of subscription."""
        self._callbacks.append(callback)

    def replace(self, config: BrokerConfig) -> None:
        old, self.now = self.now, config
        for callback in self._callbacks:
            callback(old, config)
