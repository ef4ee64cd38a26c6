"""Settings of Kafka 4.3 that are refused: to ignore them would leave open what somebody wants shut, or
silently break a promise. The error gives the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.metadata.config_definitions.model import unknown_name
from millrace.metadata.errors import InvalidConfig

_NO_JAVA: Final = (
    "ignoring it would let pass for chosen what is not: TLS is OpenSSL's here, with the versions of "
    "ssl.enabled.protocols and without classes and providers of Java's"
)
_NO_KERBEROS: Final = "ignoring it would let wait for Kerberos in vain: GSSAPI is not supported"
_NO_LOGIN_MODULE: Final = (
    "ignoring it would let wait for a login in vain: brokers log in to each other with what sasl.jaas.config "
    "says"
)
_NO_CONTROLLERS: Final = (
    "ignoring it would let pass for secured what is not there: no listener is for controllers, and etcd.* "
    "says how brokers log in to the metadata store"
)
_NO_AUTHORIZER: Final = "ignoring it would leave the broker open: nobody checks who may do what"
_NO_PLUGINS: Final = "ignoring it would let pass what the class is there to refuse: there are no plug-ins"

_REFUSED: Final[tuple[tuple[str, str], ...]] = (
    ("alter.config.policy.class.name", _NO_PLUGINS),
    ("broker.id", "it is called node.id, and ignoring it would give the broker another's identity"),
    ("client.quota.callback.class", _NO_PLUGINS),
    ("config.providers", "ignoring it would take references to secrets for values"),
    ("cordoned.log.dirs", "ignoring it would put new partitions on a disk that is to get none"),
    ("create.topic.policy.class.name", _NO_PLUGINS),
    ("early.start.listeners", _NO_AUTHORIZER),
    ("principal.builder.class", _NO_PLUGINS),
    ("zookeeper.connect", "Kafka 4 has it no more; the metadata is in metadata.store"),
    ("sasl.client.callback.handler.class", _NO_PLUGINS),
    ("sasl.mechanism.controller.protocol", _NO_CONTROLLERS),
    ("sasl.oauthbearer.scope", _NO_LOGIN_MODULE),
    ("security.providers", _NO_JAVA),
    ("ssl.engine.factory.class", _NO_JAVA),
    ("ssl.keymanager.algorithm", _NO_JAVA),
    ("ssl.protocol", _NO_JAVA),
    ("ssl.provider", _NO_JAVA),
    ("ssl.secure.random.implementation", _NO_JAVA),
    ("ssl.trustmanager.algorithm", _NO_JAVA),
)

_REFUSED_FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    ("sasl.kerberos.", _NO_KERBEROS),
    ("sasl.login.", _NO_LOGIN_MODULE),
    ("sasl.oauthbearer.assertion.", _NO_LOGIN_MODULE),
    ("sasl.oauthbearer.client.credentials.", _NO_LOGIN_MODULE),
    ("sasl.oauthbearer.jwt.", _NO_PLUGINS),
)
"""Refused settings, by the beginning of their names."""


def refusal(name: str) -> str | None:
    """Why a setting of Kafka is not taken; None for any other name."""
    for known, reason in _REFUSED:
        if name == known:
            return reason
    for beginning, reason in _REFUSED_FAMILIES:
        if name.startswith(beginning):
            return reason
    return None


def unknown_setting(name: str, known: Iterable[str], kind: str) -> InvalidConfig:
    """The error for a name that is no setting here: why it is not taken, or which name was probably meant."""
    reason = refusal(name)
    if reason is not None:
        return InvalidConfig(name, None, f"a setting of Kafka that is not accepted: {reason}")
    return unknown_name(name, known, kind)


def refused_settings() -> Iterable[tuple[str, str]]:
    """Names, or beginnings of names followed by an asterisk, with their reasons, for the documentation."""
    families = ((f"{name}*", reason) for name, reason in _REFUSED_FAMILIES)
    return sorted((*_REFUSED, *families))
