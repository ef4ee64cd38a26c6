"""What the configuration says about the security of each listener: its TLS, its logins. What can be found
wrong without a file is found here, before the broker starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.listeners import Listener
from millrace.core.override import override
from millrace.metadata.config_definitions import Value, listener_value, split_name
from millrace.metadata.config_definitions.listener_settings import names_for
from millrace.metadata.errors import InvalidConfig
from millrace.security.credentials.jaas import parse_jaas_config, plain_users
from millrace.security.errors import InvalidJaasConfig, InvalidMappingRules, RefusedUrl
from millrace.security.jwt.urls import check_url
from millrace.security.jwt.validation import JwtSettings
from millrace.security.mapping_rules import MappingRules, parse_mapping_rules
from millrace.security.sasl.oauthbearer import OAUTHBEARER
from millrace.security.sasl.plain import PLAIN
from millrace.security.tls import CLIENT_AUTH_REQUIRED, JKS, PKCS12, KeyStore, TlsSettings, TrustStore


@dataclass(frozen=True, slots=True)
class ListenerConfig(BrokerConfig):
    """The configuration as it counts for one listener, or for one SASL mechanism of it."""

    listener: str = ""
    mechanism: str | None = None

    @override
    def value(self, name: str) -> Value:
        return listener_value(name, self.layers, self.listener, self.mechanism)

    @override
    def is_set(self, name: str) -> bool:
        names = names_for(name, self.listener, self.mechanism)
        return any(one in layer for one in names for _, layer in self.layers.in_order())

    def shown(self, name: str) -> str:
        """The name to set it by, for messages: the one that counts for the fewest."""
        return names_for(name, self.listener, self.mechanism)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """OAUTHBEARER on one listener."""

    tokens: JwtSettings
    url: str | None
    """Of the key set; None only with `is_unsecured`."""
    allowed_urls: tuple[str, ...]
    refresh_s: float
    retry_s: float
    retry_s_max: float
    is_unsecured: bool
    """For tests: tokens without a signature count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """SASL on one listener."""

    mechanisms: tuple[str, ...]
    reauthentication_ms_max: dict[str, int]
    token_bytes_max: int
    failure_delay_ms: int
    plain_users: dict[str, str] | None = field(repr=False)
    """Those of the configuration, with passwords; None: those with SCRAM credentials."""
    oauth: OAuthSettings | None


def of_listener(config: BrokerConfig, listener: str, mechanism: str | None = None) -> ListenerConfig:
    return ListenerConfig(config.layers, listener, mechanism)


def has_tls(listener: Listener) -> bool:
    return listener.security_protocol in ("SSL", "SASL_SSL")


def has_logins(listener: Listener) -> bool:
    return listener.security_protocol.startswith("SASL_")


def tls_settings(config: BrokerConfig, listener: Listener) -> TlsSettings:
    """Raises InvalidConfig for what cannot work."""
    own = of_listener(config, listener.name)
    keys = KeyStore(
        kind=_store_kind(own, "ssl.keystore.type"),
        location=own.optional_text("ssl.keystore.location"),
        password=own.optional_text("ssl.keystore.password"),
        key=own.optional_text("ssl.keystore.key"),
        chain=own.optional_text("ssl.keystore.certificate.chain"),
        key_password=own.optional_text("ssl.key.password"),
    )
    trust = TrustStore(
        kind=_store_kind(own, "ssl.truststore.type"),
        location=own.optional_text("ssl.truststore.location"),
        password=own.optional_text("ssl.truststore.password"),
        certificates=own.optional_text("ssl.truststore.certificates"),
    )
    _check_stores(own, listener, keys, trust)
    return TlsSettings(
        keys=keys,
        trust=trust,
        client_auth=own.text("ssl.client.auth"),
        versions=own.texts("ssl.enabled.protocols"),
        cipher_suites=own.texts("ssl.cipher.suites"),
        rules=_mapping_rules(own),
        groups_attribute=own.optional_text("ssl.principal.groups.attribute"),
        are_other_names_allowed=own.boolean("ssl.allow.dn.changes"),
        are_fewer_hosts_allowed=own.boolean("ssl.allow.san.changes"),
        handshake_s_max=own.integer("ssl.handshake.timeout.ms") / 1000,
        handshakes_per_s=own.integer("ssl.handshake.rate.per.ip"),
    )


def login_settings(config: BrokerConfig, listener: Listener) -> LoginSettings:
    """Raises InvalidConfig for what cannot work."""
    own = of_listener(config, listener.name)
    mechanisms = own.texts("sasl.enabled.mechanisms")
    if not mechanisms:
        raise InvalidConfig(
            own.shown("sasl.enabled.mechanisms"),
            None,
            f"missing: the listener {listener.name} is for {listener.security_protocol}",
            allowed="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        )
    of_mechanism = {name: of_listener(config, listener.name, name) for name in mechanisms}
    return LoginSettings(
        mechanisms=mechanisms,
        reauthentication_ms_max={
            name: one.integer("connections.max.reauth.ms") for name, one in of_mechanism.items()
        },
        token_bytes_max=own.integer("sasl.server.max.receive.size"),
        failure_delay_ms=config.integer("connection.failed.authentication.delay.ms"),
        plain_users=_plain_users(of_mechanism[PLAIN]) if PLAIN in mechanisms else None,
        oauth=_oauth_settings(of_mechanism[OAUTHBEARER]) if OAUTHBEARER in mechanisms else None,
    )


def check_listener_security(config: BrokerConfig) -> None:
    """Refuse what no listener could work with, and what would be without effect by a slip."""
    if any("sasl.jaas.config" in layer for _, layer in config.layers.in_order()):
        raise InvalidConfig(
            "sasl.jaas.config",
            None,
            "for one mechanism of one listener alone, as in listener.name.internal.plain.sasl.jaas.config",
        )
    listeners = {listener.name: listener for listener in config.listeners}
    elsewhere = {name.upper() for name in config.texts("controller.listener.names")}
    for name in _names_of_listeners(config):
        found = split_name(name)
        if found is not None and found.listener.upper() not in (*listeners, *elsewhere):
            raise InvalidConfig(
                name, None, f"no listener is called {found.listener}", allowed=", ".join(listeners)
            )
    for listener in config.listeners:
        if has_tls(listener):
            _ = tls_settings(config, listener)
        if has_logins(listener):
            _ = login_settings(config, listener)


def _names_of_listeners(config: BrokerConfig) -> Iterator[str]:
    return (name for _, layer in config.layers.in_order() for name in layer)


def _store_kind(own: ListenerConfig, name: str) -> str:
    kind = own.text(name)
    if kind == JKS:
        raise InvalidConfig(
            own.shown(name),
            kind,
            "only Java reads it. Convert it with keytool -importkeystore -srckeystore old.jks -destkeystore "
            "new.p12 -deststoretype PKCS12, and set PKCS12; openssl pkcs12 -in new.p12 makes PEM of that",
        )
    return kind


def _check_stores(own: ListenerConfig, listener: Listener, keys: KeyStore, trust: TrustStore) -> None:
    needs = f"the listener {listener.name} is for {listener.security_protocol}"
    if not keys.is_given:
        raise InvalidConfig(
            own.shown("ssl.keystore.location"),
            None,
            f"missing: {needs}, and needs a key and its certificate, here or in ssl.keystore.key",
        )
    if keys.location is not None and keys.key is not None:
        raise InvalidConfig(
            own.shown("ssl.keystore.key"), None, "given beside ssl.keystore.location: one of them counts"
        )
    if (keys.key is None) != (keys.chain is None):
        raise InvalidConfig(
            own.shown("ssl.keystore.certificate.chain"),
            None,
            "needs ssl.keystore.key, and the other way round",
        )
    if keys.kind == PKCS12 and keys.key is not None:
        raise InvalidConfig(own.shown("ssl.keystore.key"), None, "is PEM, and ssl.keystore.type is PKCS12")
    if own.text("ssl.client.auth") == CLIENT_AUTH_REQUIRED and not trust.is_given:
        raise InvalidConfig(
            own.shown("ssl.truststore.location"),
            None,
            f"missing: ssl.client.auth of {listener.name} is required, and no authority is trusted",
        )


def _mapping_rules(own: ListenerConfig) -> MappingRules:
    text = own.text("ssl.principal.mapping.rules")
    try:
        return parse_mapping_rules(text)
    except InvalidMappingRules as error:
        raise InvalidConfig(own.shown("ssl.principal.mapping.rules"), text, str(error)) from None


def _plain_users(own: ListenerConfig) -> dict[str, str] | None:
    text = own.optional_text("sasl.jaas.config")
    if text is None:
        return None
    try:
        users = plain_users(parse_jaas_config(text))
    except InvalidJaasConfig as error:
        raise InvalidConfig(own.shown("sasl.jaas.config"), None, str(error)) from None
    # With a name for this broker alone, and no users, it says nothing about who may log in here.
    return users or None


def _oauth_settings(own: ListenerConfig) -> OAuthSettings:
    url = own.optional_text("sasl.oauthbearer.jwks.endpoint.url")
    is_unsecured = own.boolean("sasl.oauthbearer.unsecured.enable")
    allowed = own.texts("sasl.oauthbearer.allowed.urls")
    name = own.shown("sasl.oauthbearer.jwks.endpoint.url")
    if url is None and not is_unsecured:
        raise InvalidConfig(name, None, "missing: without keys no token can be verified")
    if url is not None:
        try:
            check_url(url, allowed, are_files_allowed=True)
        except RefusedUrl as error:
            reason = f"{error}; set sasl.oauthbearer.allowed.urls to it"
            raise InvalidConfig(name, None, reason) from None
    return OAuthSettings(
        tokens=JwtSettings(
            audiences=own.texts("sasl.oauthbearer.expected.audience"),
            issuer=own.optional_text("sasl.oauthbearer.expected.issuer"),
            skew_s=own.integer("sasl.oauthbearer.clock.skew.seconds"),
            subject_claim=own.text("sasl.oauthbearer.sub.claim.name"),
            scope_claim=own.text("sasl.oauthbearer.scope.claim.name"),
            groups_claim=own.optional_text("sasl.oauthbearer.groups.claim.name"),
        ),
        url=url,
        allowed_urls=allowed,
        refresh_s=own.integer("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
        retry_s=own.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
        retry_s_max=own.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
        is_unsecured=is_unsecured,
    )
