"""Settings of Kafka 4.3 that are refused: to ignore them would leave open what somebody wants shut, or
silently break a promise. The error gives the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.metadata.config_definitions.model import unknown_name
from millrace.metadata.errors import InvalidConfig

_NO_SECURITY: Final = (
    "ignoring it would leave the broker open: connections are neither encrypted nor authenticated"
)
_NO_AUTHORIZER: Final = "ignoring it would leave the broker open: nobody checks who may do what"
_NO_QUOTAS: Final = "ignoring it would let clients take what they like: there are no client quotas"
_NO_PLUGINS: Final = "ignoring it would let pass what the class is there to refuse: there are no plug-ins"

_REFUSED: Final[tuple[tuple[str, str], ...]] = (
    ("alter.config.policy.class.name", _NO_PLUGINS),
    ("broker.id", "it is called node.id, and ignoring it would give the broker another's identity"),
    ("client.quota.callback.class", _NO_QUOTAS),
    ("config.providers", "ignoring it would take references to secrets for values"),
    ("connection.failed.authentication.delay.ms", _NO_SECURITY),
    ("connections.max.reauth.ms", _NO_SECURITY),
    ("controller.quota.window.num", _NO_QUOTAS),
    ("controller.quota.window.size.seconds", _NO_QUOTAS),
    ("cordoned.log.dirs", "ignoring it would put new partitions on a disk that is to get none"),
    ("create.topic.policy.class.name", _NO_PLUGINS),
    ("early.start.listeners", _NO_AUTHORIZER),
    (
        "max.connection.creation.rate",
        "ignoring it would let connections come at any rate; max.connections bounds their number",
    ),
    ("principal.builder.class", _NO_AUTHORIZER),
    ("quota.window.num", _NO_QUOTAS),
    ("quota.window.size.seconds", _NO_QUOTAS),
    ("zookeeper.connect", "Kafka 4 has it no more; the metadata is in metadata.store"),
)

_REFUSED_FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    ("delegation.token.", _NO_SECURITY),
    ("listener.name.", "no listener has settings of its own here, and most of these are for its security"),
    ("sasl.", _NO_SECURITY),
    ("security.providers", _NO_SECURITY),
    ("ssl.", _NO_SECURITY),
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
    families = ((f"{name}*" if name.endswith(".") else name, reason) for name, reason in _REFUSED_FAMILIES)
    return sorted((*_REFUSED, *families))
