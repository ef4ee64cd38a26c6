"""The broker-level settings of logins: SASL and delegation tokens. Most may be set for a listener alone, with
the prefix `listener.name.<listener>.`, and some for one mechanism of it, with `<mechanism>.` behind that."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.broker_security import secret
from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    Importance,
    ListOf,
    OneOf,
    Range,
    Setting,
    UpdateMode,
    Value,
)
from millrace.security.credentials.jaas import parse_jaas_config
from millrace.security.errors import InvalidJaasConfig

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_INT, _LONG, _STRING, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.STRING, ConfigType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW
_VALIDATORS: Final = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{place}OAuthBearerValidatorCallbackHandler"
    for place in ("", "secured.")
)
_NO_GSSAPI: Final = "Kafka's is GSSAPI, which is not supported here"


def _is_jaas_config(value: Value) -> bool:
    """It may be set while the broker runs: then it must not be found out by those who use it."""
    assert isinstance(value, str)
    try:
        parse_jaas_config(value)
    except InvalidJaasConfig:
        return False
    return True


_SASL: Final = (
    Setting(
        name="sasl.enabled.mechanisms",
        type=_LIST,
        default=(),
        doc="The mechanisms by which clients log in on listeners with SASL. Such a listener needs at least "
        "one.",
        valid=ListOf(MECHANISMS),
        importance=_HIGH,
        deviates=_NO_GSSAPI,
    ),
    secret(
        "sasl.jaas.config",
        "For one mechanism of one listener alone, as in listener.name.internal.plain.sasl.jaas.config. For "
        'PLAIN: the users with their passwords, as options user_alice="..." of PlainLoginModule; without it, '
        "those log in by PLAIN who have SCRAM credentials. The options username and password are what this "
        "broker logs in to others with.",
        update=UpdateMode.PER_BROKER,
        valid=Check(_is_jaas_config, "a login module, its flag and its options, ended by a semicolon"),
    ),
    Setting(
        name="sasl.mechanism.inter.broker.protocol",
        type=_STRING,
        default=None,
        doc="The mechanism by which brokers log in to each other.",
        valid=OneOf(MECHANISMS),
        deviates=_NO_GSSAPI,
    ),
    Setting(
        name="sasl.server.max.receive.size",
        type=_INT,
        default=524_288,
        doc="The size of the largest request before a client has logged in. A larger one ends the "
        "connection.",
        valid=Range(1),
    ),
    Setting(
        name="connections.max.reauth.ms",
        type=_LONG,
        default=0,
        doc="After how long a client has to log in again, on the same connection; else the connection is "
        "closed with its next request. 0 for never. The end of a token ends a session in any case.",
        valid=Range(0),
    ),
    Setting(
        name="sasl.server.callback.handler.class",
        type=ConfigType.CLASS,
        default=None,
        doc="Accepted from Kafka's files for OAUTHBEARER, whose tokens are always verified here.",
        valid=OneOf(("", *_VALIDATORS)),
        importance=_LOW,
    ),
)

_OAUTH: Final = (
    Setting(
        name="sasl.oauthbearer.jwks.endpoint.url",
        type=_STRING,
        default=None,
        doc="Where the keys are that verify tokens: a JSON Web Key Set by https, or in a file by file. It "
        "must be in sasl.oauthbearer.allowed.urls, letter by letter.",
    ),
    Setting(
        name="sasl.oauthbearer.allowed.urls",
        type=_LIST,
        default=(),
        doc="The URLs that this broker may fetch keys from. Kafka has a system property for this, "
        "org.apache.kafka.sasl.oauthbearer.allowed.urls.",
    ),
    Setting(
        name="sasl.oauthbearer.token.endpoint.url",
        type=_STRING,
        default=None,
        doc="Where brokers that log in to each other by OAUTHBEARER get their tokens, by https for the "
        "clientId and clientSecret of sasl.jaas.config, or in a file by file. It must be in "
        "sasl.oauthbearer.allowed.urls, letter by letter.",
    ),
    Setting(
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        type=_LONG,
        default=3_600_000,
        doc="How often the keys are fetched again.",
        valid=Range(1_000),
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        type=_LONG,
        default=100,
        doc="How long to wait before keys that could not be fetched are tried again, at first.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        type=_LONG,
        default=10_000,
        doc="The longest wait before keys that could not be fetched are tried again.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.clock.skew.seconds",
        type=_INT,
        default=30,
        doc="By how much the clocks of the provider and this broker may differ.",
        valid=Range(0, 3_600),
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.expected.audience",
        type=_LIST,
        default=None,
        doc="A token must be for one of these (aud). Without it, tokens that say for whom they are are "
        "refused.",
    ),
    Setting(
        name="sasl.oauthbearer.expected.issuer",
        type=_STRING,
        default=None,
        doc="A token must be of this issuer (iss). Without it, the key alone tells.",
    ),
    Setting(
        name="sasl.oauthbearer.scope.claim.name",
        type=_STRING,
        default="scope",
        doc="The claim that holds the scopes of a token.",
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.sub.claim.name",
        type=_STRING,
        default="sub",
        doc="The claim that holds the name of the principal.",
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.groups.claim.name",
        type=_STRING,
        default=None,
        doc="The claim that holds the groups of the principal; dots lead into objects, as in "
        "realm_access.roles. Without it, tokens tell no groups.",
        importance=_LOW,
    ),
    Setting(
        name="sasl.oauthbearer.unsecured.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="For tests alone: accept tokens that nobody has signed. Whoever connects is who they say.",
        importance=_LOW,
    ),
)

_TOKENS: Final = (
    secret(
        "delegation.token.secret.key",
        "The secret that delegation tokens are made from, the same on all brokers. Without it there are "
        "none; another one makes all tokens worthless.",
    ),
    Setting(
        name="delegation.token.max.lifetime.ms",
        type=_LONG,
        default=7 * 24 * 3_600_000,
        doc="How long a delegation token lasts at most, however often it is renewed.",
        valid=Range(1),
    ),
    Setting(
        name="delegation.token.expiry.time.ms",
        type=_LONG,
        default=24 * 3_600_000,
        doc="How long a delegation token lasts without being renewed.",
        valid=Range(1),
    ),
    Setting(
        name="delegation.token.expiry.check.interval.ms",
        type=_LONG,
        default=3_600_000,
        doc="How often expired delegation tokens are removed. They count no more from the moment of their "
        "end.",
        valid=Range(1),
        importance=_LOW,
    ),
)

SASL_LISTENER_SETTINGS: Final = _SASL + _OAUTH
SASL_SETTINGS: Final = (
    *SASL_LISTENER_SETTINGS,
    Setting(
        name="metadata.bootstrap.credentials.file",
        type=_STRING,
        default=None,
        doc="A file of users with SCRAM credentials, as `millrace secure init` writes it. A broker that sees "
        "no user in the cluster's metadata when it starts stores these, so that somebody can log in. "
        "Afterwards it means nothing.",
    ),
    Setting(
        name="connection.failed.authentication.delay.ms",
        type=_INT,
        default=100,
        doc="How long the answer to a failed login waits, and the end of the connection with it: nobody "
        "guesses fast, and clients do not storm the broker.",
        valid=Range(0),
        importance=_LOW,
    ),
    *_TOKENS,
)
