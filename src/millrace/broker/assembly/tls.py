"""TLS of the listeners that have it, and what is to be said about those that have nothing."""

from __future__ import annotations

import ipaddress
import logging

from millrace.broker.assembly.ground import Ground
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.listener_security import has_logins, has_tls, of_listener, tls_settings
from millrace.broker.config.listeners import Listener
from millrace.broker.network.tls_listener import TlsListener
from millrace.metadata.errors import InvalidConfig
from millrace.security.errors import InvalidTlsMaterial
from millrace.security.tls import CLIENT_AUTH_REQUIRED

log = logging.getLogger(__name__)


def build_tls(ground: Ground) -> dict[str, TlsListener]:
    """The TLS of each listener that has it. It follows the files and the settings. Raises InvalidConfig."""
    found: dict[str, TlsListener] = {}
    for listener in ground.config.now.listeners:
        if has_tls(listener):
            tls = found[listener.name] = _build(ground, listener)
            _ = ground.background.keep("certificates", tls.watch)

    def reconfigure(before: BrokerConfig, now: BrokerConfig) -> None:
        for listener in now.listeners:
            if listener.name not in found:
                continue
            try:
                settings = tls_settings(now, listener)
                if settings == tls_settings(before, listener):
                    continue
            except InvalidConfig as error:
                log.error("new settings of TLS cannot be used, the old ones stay: %s", error)
                continue
            _ = ground.background.start("certificates", found[listener.name].take(settings))

    ground.config.subscribe(reconfigure)
    return found


def warn_of_open_listeners(config: BrokerConfig) -> None:
    """Say it once, clearly, where others may reach a broker that asks nobody who they are."""
    names = [
        listener.name
        for listener in config.listeners
        if not _is_loopback(listener.host) and not _asks_who(config, listener)
    ]
    if names:
        log.warning(
            "everybody who reaches this broker may use it: these listeners ask nobody who they are, and "
            "listen on more than this machine (docs/security.md says how to change that)",
            extra={"listeners": ", ".join(names)},
        )


def _build(ground: Ground, listener: Listener) -> TlsListener:
    config = ground.config.now
    try:
        return TlsListener(listener.name, tls_settings(config, listener), ground.surroundings.clock, None)
    except InvalidTlsMaterial as error:
        name = of_listener(config, listener.name).shown("ssl.keystore.location")
        raise InvalidConfig(name, None, str(error)) from None


def _asks_who(config: BrokerConfig, listener: Listener) -> bool:
    if has_logins(listener):
        return True
    return has_tls(listener) and tls_settings(config, listener).client_auth == CLIENT_AUTH_REQUIRED


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
