"""Settings of one listener: `listener.name.<listener>.<setting>`, and of one of its SASL mechanisms:
`listener.name.<listener>.<mechanism>.<setting>`. Both names are in lower case, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace.metadata.config_definitions.broker_quotas import CONNECTION_SETTINGS
from millrace.metadata.config_definitions.broker_sasl import MECHANISMS, SASL_LISTENER_SETTINGS
from millrace.metadata.config_definitions.broker_security import TLS_SETTINGS
from millrace.metadata.config_definitions.model import Setting
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS

PREFIX: Final = "listener.name."

OF_LISTENERS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in TLS_SETTINGS + SASL_LISTENER_SETTINGS + CONNECTION_SETTINGS}
)
"""Those that a listener may have for itself."""
OF_MECHANISMS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in SASL_LISTENER_SETTINGS
        if setting.name not in ("sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol")
    }
)
"""Those that one mechanism of a listener may have for itself."""
ONLY_OF_MECHANISMS: Final = ("sasl.jaas.config",)


class ListenerName(NamedTuple):
    """A name of a setting, taken apart."""

    listener: str
    mechanism: str | None
    setting: str


def split_name(name: str) -> ListenerName | None:
    """Whose setting it is; None for the name of any other, and for one that nobody knows."""
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX)
    # A listener's name may have dots in it: what stands behind it is known, so look for that.
    for known in OF_MECHANISMS:
        for mechanism in MECHANISMS:
            ending = f".{mechanism.lower()}.{known}"
            if rest.endswith(ending) and len(rest) > len(ending):
                return ListenerName(rest.removesuffix(ending), mechanism, known)
    for known in OF_LISTENERS:
        ending = f".{known}"
        if rest.endswith(ending) and len(rest) > len(ending) and known not in ONLY_OF_MECHANISMS:
            return ListenerName(rest.removesuffix(ending), None, known)
    return None


def names_for(setting: str, listener: str, mechanism: str | None = None) -> tuple[str, ...]:
    """All names under which a setting counts for a listener, strongest first."""
    of_listener = f"{PREFIX}{listener.lower()}."
    names = (of_listener + setting, setting)
    return names if mechanism is None else (f"{of_listener}{mechanism.lower()}.{setting}", *names)


@lru_cache(maxsize=1_000)
def broker_setting(name: str) -> Setting | None:
    """The setting of this name, also one of a listener; None if there is none."""
    setting = BROKER_SETTINGS.get(name)
    if setting is not None:
        return setting
    found = split_name(name)
    # Without a value of its own, a listener has the one that stands for all.
    return None if found is None else replace(OF_LISTENERS[found.setting], name=name, default=None)
