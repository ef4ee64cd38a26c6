"""How this broker connects to the others of its cluster: by which protocol, with which certificate, and as
whom."""

from __future__ import annotations

from pathlib import Path

from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.listener_security import ListenerConfig, has_logins, has_tls, of_listener
from millrace.broker.config.listeners import Listener
from millrace.client.errors import InvalidOption
from millrace.client.security import PLAINTEXT, SecurityOptions, login_of
from millrace.client.tls import TlsOptions
from millrace.metadata.errors import InvalidConfig
from millrace.security.errors import RefusedUrl
from millrace.security.jwt.urls import check_url
from millrace.security.sasl.oauthbearer import OAUTHBEARER
from millrace.security.tls import PKCS12


def listener_to_others(config: BrokerConfig) -> Listener:
    """This broker's own listener of the name by which it reaches the others."""
    name = config.listener_between_brokers
    if name is None:
        return config.listeners[0]
    return next(listener for listener in config.listeners if listener.name == name.upper())


def security_to_others(config: BrokerConfig) -> SecurityOptions:
    """Raises InvalidConfig for what no connection could be made with."""
    listener = listener_to_others(config)
    if not has_tls(listener) and not has_logins(listener):
        return PLAINTEXT
    own = of_listener(config, listener.name)
    tls = _tls(own) if has_tls(listener) else TlsOptions()
    if not has_logins(listener):
        return SecurityOptions(protocol=listener.security_protocol, tls=tls)
    mechanism = own.optional_text("sasl.mechanism.inter.broker.protocol")
    if mechanism is None:
        raise InvalidConfig(
            "sasl.mechanism.inter.broker.protocol",
            None,
            f"missing: brokers reach each other by {listener.name}, which is for "
            f"{listener.security_protocol}",
            allowed=", ".join(own.texts("sasl.enabled.mechanisms")),
        )
    if mechanism not in own.texts("sasl.enabled.mechanisms"):
        raise InvalidConfig(
            "sasl.mechanism.inter.broker.protocol",
            mechanism,
            f"not one by which others can log in on {listener.name}",
            allowed=", ".join(own.texts("sasl.enabled.mechanisms")),
        )
    return _login(of_listener(config, listener.name, mechanism), mechanism, listener, tls)


def _login(own: ListenerConfig, mechanism: str, listener: Listener, tls: TlsOptions) -> SecurityOptions:
    name = own.shown("sasl.jaas.config")
    jaas = own.optional_text("sasl.jaas.config")
    if jaas is None:
        raise InvalidConfig(
            name, None, "missing: its username and password are what this broker logs in to others with"
        )
    url = own.optional_text("sasl.oauthbearer.token.endpoint.url")
    if mechanism == OAUTHBEARER and url is not None:
        try:
            check_url(url, own.texts("sasl.oauthbearer.allowed.urls"), are_files_allowed=True)
        except RefusedUrl as error:
            shown = own.shown("sasl.oauthbearer.token.endpoint.url")
            raise InvalidConfig(shown, None, f"{error}; set sasl.oauthbearer.allowed.urls to it") from None
    try:
        return login_of(jaas, mechanism, listener.security_protocol, tls, token_url=url)
    except InvalidOption as error:
        raise InvalidConfig(name, None, str(error)) from None


def _tls(own: ListenerConfig) -> TlsOptions:
    """The certificate that clients see is also what this broker shows to the others."""
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if own.text(name) == PKCS12:
            raise InvalidConfig(own.shown(name), PKCS12, "brokers reach each other with PEM alone")
    trusted = own.optional_text("ssl.truststore.location")
    if trusted is not None and not Path(trusted).is_file():
        raise InvalidConfig(own.shown("ssl.truststore.location"), trusted, "there is no such file")
    return TlsOptions(
        ca_file=trusted,
        ca_pem=own.optional_text("ssl.truststore.certificates"),
        certificate_file=own.optional_text("ssl.keystore.location"),
        certificate_pem=own.optional_text("ssl.keystore.certificate.chain"),
        key_pem=own.optional_text("ssl.keystore.key"),
        key_password=own.optional_text("ssl.key.password"),
        check_hostname=own.optional_text("ssl.endpoint.identification.algorithm") == "https",
    )
