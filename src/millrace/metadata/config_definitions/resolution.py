"""Which value counts, and where it comes from: topic over broker over cluster default over file over
built-in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace.core.override import override
from millrace.log.config import LogConfig
from millrace.metadata.config_definitions.listener_settings import PREFIX, broker_setting, names_for
from millrace.metadata.config_definitions.model import (
    ConfigSource,
    ConfigType,
    Setting,
    Synonym,
    UpdateMode,
    Value,
    format_value,
)
from millrace.metadata.config_definitions.refused import unknown_setting
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, GROUP_OWN_SETTINGS, TOPIC_SETTINGS
from millrace.metadata.config_definitions.throttled_replicas import (
    NONE,
    ThrottledReplicas,
    parse_throttled_replicas,
)
from millrace.metadata.errors import InvalidConfig

_KINDS_WITH_SESSIONS: Final = ("consumer", "share", "streams")
NOTHING_SET: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """What is set for a broker, as text, strongest first. Built-in defaults come after all of them."""

    dynamic_broker: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    dynamic_default: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    static: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)

    @override
    def __repr__(self) -> str:
        """Names alone: among the values are secrets."""
        names = {source.name: sorted(layer) for source, layer in self.in_order() if layer}
        return f"BrokerLayers({names})"

    def in_order(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        return (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic_broker),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static),
        )


class ConfigSynonym(NamedTuple):
    """A value that counts, or would count if no stronger one were set."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One line of an answer to DescribeConfigs."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic's settings, resolved for this broker. Shared by all topics that set nothing themselves."""

    log: LogConfig
    min_insync_replicas: int
    unclean_leader_election: bool
    throttled_leaders: ThrottledReplicas = NONE
    throttled_followers: ThrottledReplicas = NONE


def broker_value(name: str, layers: BrokerLayers) -> Value:
    """The value of a broker setting that counts now."""
    setting = BROKER_SETTINGS[name]
    for _, layer in layers.in_order():
        if name in layer:
            return setting.parse(layer[name])
    return setting.default


def listener_value(name: str, layers: BrokerLayers, listener: str, mechanism: str | None = None) -> Value:
    """The value of a setting that counts now for a listener, or for one of its SASL mechanisms."""
    setting = BROKER_SETTINGS[name]
    for candidate in names_for(name, listener, mechanism):
        for _, layer in layers.in_order():
            if candidate in layer:
                return setting.parse(layer[candidate])
    return setting.default


def topic_value(name: str, configs: Mapping[str, str], layers: BrokerLayers) -> Value:
    """The value of a topic setting that counts now, given what the topic sets itself."""
    setting = TOPIC_SETTINGS[name]
    if name in configs:
        return setting.parse(configs[name])
    for synonym, text, _ in _candidates(setting.synonyms, layers):
        return _converted(BROKER_SETTINGS[synonym.name].parse(text), synonym)
    return setting.default


def group_value(name: str, configs: Mapping[str, str], layers: BrokerLayers) -> Value:
    """The value of a group's setting that counts now, given what is set for the group itself."""
    setting = GROUP_OWN_SETTINGS[name]
    if name in configs:
        return setting.parse(configs[name])
    return broker_value(setting.synonyms[0].name, layers) if setting.synonyms else setting.default


def describe_group(
    configs: Mapping[str, str], layers: BrokerLayers, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """A group's settings with their sources; unknown names are left out, `None` asks for all."""
    return [
        _owned_entry(
            setting,
            configs,
            layers,
            value=group_value(setting.name, configs, layers),
            own_source=ConfigSource.DYNAMIC_GROUP_CONFIG,
        )
        for setting in _chosen(GROUP_OWN_SETTINGS, names)
    ]


def check_group_configs(configs: Mapping[str, str], layers: BrokerLayers) -> None:
    """Refuse what the broker's settings do not allow, and a session shorter than its heartbeats."""
    for name, text in configs.items():
        value = GROUP_OWN_SETTINGS[name].parse(text)
        kind, _, what = name.partition(".")
        if f"group.{kind}.min.{what}" in BROKER_SETTINGS:
            low = _integer(broker_value(f"group.{kind}.min.{what}", layers))
            high = _integer(broker_value(f"group.{kind}.max.{what}", layers))
            if not low <= _integer(value) <= high:
                raise InvalidConfig(name, text, "not allowed", allowed=f"{low} to {high}")
    standby_max = _integer(broker_value("group.streams.max.standby.replicas", layers))
    if _integer(group_value("streams.num.standby.replicas", configs, layers)) > standby_max:
        raise InvalidConfig(
            "streams.num.standby.replicas",
            configs.get("streams.num.standby.replicas"),
            "not allowed",
            allowed=f"0 to {standby_max}",
        )
    for kind in _KINDS_WITH_SESSIONS:
        session_ms = _integer(group_value(f"{kind}.session.timeout.ms", configs, layers))
        heartbeat_ms = _integer(group_value(f"{kind}.heartbeat.interval.ms", configs, layers))
        if session_ms <= heartbeat_ms:
            raise InvalidConfig(
                f"{kind}.session.timeout.ms",
                str(session_ms),
                f"not longer than {kind}.heartbeat.interval.ms, which is {heartbeat_ms}",
            )
    _check_backoff(configs, layers)


def _check_backoff(configs: Mapping[str, str], layers: BrokerLayers) -> None:
    first_ms = _integer(group_value("share.retry.backoff.ms", configs, layers))
    max_ms = _integer(group_value("share.retry.backoff.max.ms", configs, layers))
    if first_ms > max_ms:
        raise InvalidConfig(
            "share.retry.backoff.ms",
            str(first_ms),
            f"larger than share.retry.backoff.max.ms, which is {max_ms}",
        )


def describe_topic(
    configs: Mapping[str, str], layers: BrokerLayers, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """The topic's settings with their sources; unknown names are left out, `None` asks for all."""
    return [
        _owned_entry(
            setting,
            configs,
            layers,
            value=topic_value(setting.name, configs, layers),
            own_source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )
        for setting in _chosen(TOPIC_SETTINGS, names)
    ]


def describe_broker(layers: BrokerLayers, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """The broker's settings with their sources; unknown names are left out, `None` asks for all."""
    entries = []
    of_listeners = sorted(name for _, layer in layers.in_order() for name in layer if name.startswith(PREFIX))
    table = {
        **BROKER_SETTINGS,
        **{name: known for name in of_listeners if (known := broker_setting(name)) is not None},
    }
    for setting in _chosen(table, names):
        chain = setting.synonyms[_place_in_chain(setting) :] or (Synonym(setting.name),)
        found = [
            ConfigSynonym(synonym.name, text, source) for synonym, text, source in _candidates(chain, layers)
        ]
        # A setting is described by its own values; a coarser one is shown behind it, never instead of it.
        while found and found[0].name != setting.name:
            found.pop(0)
        value = found[0].value if setting.name in of_listeners else None
        if setting.name in BROKER_SETTINGS:
            value = format_value(broker_value(setting.name, layers))
        entries.append(_entry(setting, value, found, is_read_only=setting.update is UpdateMode.READ_ONLY))
    return entries


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse unknown names, bad values and values that contradict each other."""
    values: dict[str, Value] = {}
    for name, text in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise unknown_setting(name, _public_names(TOPIC_SETTINGS), "topic")
        values[name] = setting.parse(text)
    lag_min, lag_max = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(lag_min, int) and isinstance(lag_max, int) and lag_min > lag_max:
        raise InvalidConfig(
            "min.compaction.lag.ms", str(lag_min), f"larger than max.compaction.lag.ms, which is {lag_max}"
        )


def topic_settings(configs: Mapping[str, str], layers: BrokerLayers) -> TopicSettings:
    """Everything that a replica of the topic needs to know. Not cheap: keep the result."""
    unclean = topic_value("unclean.leader.election.enable", configs, layers)
    return TopicSettings(
        log=to_log_config(configs, layers),
        min_insync_replicas=_integer(topic_value("min.insync.replicas", configs, layers)),
        unclean_leader_election=unclean is True,
        throttled_leaders=parse_throttled_replicas(
            topic_value("leader.replication.throttled.replicas", configs, layers)
        ),
        throttled_followers=parse_throttled_replicas(
            topic_value("follower.replication.throttled.replicas", configs, layers)
        ),
    )


def to_log_config(configs: Mapping[str, str], layers: BrokerLayers) -> LogConfig:
    """The settings that the log needs, resolved."""
    values: dict[str, Value] = {}
    for attribute, name in _LOG_ATTRIBUTES:
        values[attribute] = topic_value(name, configs, layers)
    policy = topic_value("cleanup.policy", configs, layers)
    assert isinstance(policy, tuple), policy
    small_segments = topic_value("internal.segment.bytes", configs, layers)
    if small_segments is not None:
        values["segment_bytes"] = small_segments
    return LogConfig(
        cleanup_compact="compact" in policy,
        cleanup_delete="delete" in policy,
        timestamp_log_append=topic_value("message.timestamp.type", configs, layers) == "LogAppendTime",
        timestamp_before_max_ms=_integer(topic_value("message.timestamp.before.max.ms", configs, layers)),
        timestamp_after_max_ms=_integer(topic_value("message.timestamp.after.max.ms", configs, layers)),
        deep_validation=topic_value("batch.validation", configs, layers) == "deep",
        producer_id_expiration_ms=_integer(broker_value("producer.id.expiration.ms", layers)),
        **values,  # type: ignore[arg-type]
    )


# The attributes of LogConfig that are a topic setting under the same name, dots for underscores.
_LOG_ATTRIBUTES: Final = tuple(
    (attribute.name, attribute.name.replace("_", "."))
    for attribute in fields(LogConfig)
    if attribute.name.replace("_", ".") in TOPIC_SETTINGS
)


def _integer(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def _candidates(
    chain: tuple[Synonym, ...], layers: BrokerLayers
) -> Iterator[tuple[Synonym, str, ConfigSource]]:
    """Every value that a chain of broker settings has anywhere, the one that counts first."""
    for source, layer in layers.in_order():
        for synonym in chain:
            if synonym.name in layer:
                yield synonym, layer[synonym.name], source
    for synonym in chain:
        setting = BROKER_SETTINGS.get(synonym.name)
        text = None if setting is None else format_value(setting.default)
        if text is not None:
            yield synonym, text, ConfigSource.DEFAULT_CONFIG


def _converted(value: Value, synonym: Synonym) -> Value:
    if synonym.factor == 1 or not isinstance(value, int):
        return value
    # -1 means "without limit" in every unit.
    return value if value < 0 else value * synonym.factor


def _place_in_chain(setting: Setting) -> int:
    return next((place for place, synonym in enumerate(setting.synonyms) if synonym.name == setting.name), 0)


def _owned_entry(
    setting: Setting,
    configs: Mapping[str, str],
    layers: BrokerLayers,
    *,
    value: Value,
    own_source: ConfigSource,
) -> ConfigEntry:
    """The entry of a setting that a topic or a group may have for itself, before those of the broker."""
    synonyms = [
        ConfigSynonym(synonym.name, text, source)
        for synonym, text, source in _candidates(setting.synonyms, layers)
    ]
    if setting.name in configs:
        synonyms.insert(0, ConfigSynonym(setting.name, configs[setting.name], own_source))
    return _entry(setting, format_value(value), synonyms, is_read_only=False)


def _entry(
    setting: Setting, value: str | None, synonyms: list[ConfigSynonym], *, is_read_only: bool
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    if setting.sensitive:
        value = None
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
    return ConfigEntry(
        setting.name,
        value,
        source,
        is_read_only,
        setting.sensitive,
        setting.type,
        setting.doc,
        tuple(synonyms),
    )


def _chosen(table: Mapping[str, Setting], names: Iterable[str] | None) -> Iterator[Setting]:
    if names is None:
        yield from (setting for setting in table.values() if not setting.internal)
        return
    for name in names:
        if name in table:
            yield table[name]


def _public_names(table: Mapping[str, Setting]) -> list[str]:
    return [setting.name for setting in table.values() if not setting.internal]
