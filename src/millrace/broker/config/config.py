"""A broker's configuration: read from a file, options and the environment, checked as a whole, then handed
around.

Its sources, weakest to strongest: the file (TOML or .properties), `--set`, variables MILLRACE_*. No other
module reads them, and this one does before the event loop runs.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from millrace.broker.config.listeners import Listener, check_listeners, parse_advertised, parse_listeners
from millrace.core.ids import NodeId
from millrace.core.properties import parse_properties
from millrace.metadata.commands import Policy
from millrace.metadata.config_definitions import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerLayers,
    Value,
    broker_setting,
    broker_value,
    split_list,
    unknown_name,
    unknown_setting,
)
from millrace.metadata.errors import InvalidConfig

VARIABLE_PREFIX: Final = "MILLRACE_"
OTHER_VARIABLES: Final = ("MILLRACE_BOOTSTRAP", "MILLRACE_CLIENT_CONFIG")
"""Variables of ours that are no broker settings."""
TEST_VARIABLES: Final = "MILLRACE_TEST_"
_BOUNDED_FOR_GROUPS: Final = {
    "consumer": ("session.timeout.ms", "heartbeat.interval.ms"),
    "share": (
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "record.lock.duration.ms",
        "delivery.count.limit",
        "partition.max.record.locks",
        "assignment.interval.ms",
    ),
    "streams": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
}
"""What groups of a kind may be given within bounds that are settings as well."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What is set, and what follows from it. Every value in it has been checked."""

    layers: BrokerLayers = field(default_factory=BrokerLayers)

    # Values by Kafka's name.

    def value(self, name: str) -> Value:
        return broker_value(name, self.layers)

    def integer(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), (name, value)
        return value

    def number(self, name: str) -> float:
        value = self.value(name)
        assert isinstance(value, int | float), (name, value)
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        assert isinstance(value, bool), (name, value)
        return value

    def text(self, name: str) -> str:
        value = self.value(name)
        assert isinstance(value, str), (name, value)
        return value

    def optional_text(self, name: str) -> str | None:
        """The text, or None where nothing is set or the text is empty."""
        value = self.value(name)
        assert value is None or isinstance(value, str), (name, value)
        return value or None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        assert value is None or isinstance(value, tuple), (name, value)
        return value or ()

    def is_set(self, name: str) -> bool:
        """Whether somebody chose the value, rather than our default."""
        return any(name in layer for _, layer in self.layers.in_order())

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The settings of Kafka that somebody chose and that mean nothing here."""
        return tuple(
            name for name, setting in BROKER_SETTINGS.items() if setting.without_effect and self.is_set(name)
        )

    # What needs more than one setting, or a structure.

    @property
    def node_id(self) -> NodeId:
        return NodeId(self.integer("node.id"))

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Absolute paths: clients name directories by them."""
        single = self.optional_text("log.dir")
        if single is not None and not self.is_set("log.dirs"):
            return (os.path.abspath(single),)
        return tuple(os.path.abspath(directory) for directory in self.texts("log.dirs"))

    @property
    def metadata_store_path(self) -> str:
        chosen = self.optional_text("metadata.store.path")
        if chosen is not None:
            return chosen
        # The store stays where it was made: the order of the directories may change.
        paths = [f"{directory}/metadata.sqlite" for directory in self.log_dirs]
        return next((path for path in paths if os.path.exists(path)), paths[0])

    @property
    def is_clustered(self) -> bool:
        """Whether the metadata is shared with other brokers."""
        return self.text("metadata.store") != "embedded"

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return parse_listeners(self.texts("listeners"), self.text("listener.security.protocol.map"))

    @property
    def advertised_listeners(self) -> Mapping[str, tuple[str, int]]:
        """The host and port to tell clients, by listener name. Clients of a listener that has none here are
        told what they dialled."""
        return parse_advertised(self.texts("advertised.listeners"))

    @property
    def listener_between_brokers(self) -> str | None:
        """The name of the listener that brokers use among themselves; None for each broker's first one."""
        name = self.optional_text("inter.broker.listener.name")
        protocol = "security.inter.broker.protocol"
        if not self.is_set(protocol):
            return name
        if name is not None:
            raise InvalidConfig(protocol, self.text(protocol), "given beside inter.broker.listener.name")
        return self.text(protocol)

    @property
    def metrics_listener(self) -> tuple[str, int] | None:
        """Host and port of the HTTP server, or None if there is to be none."""
        address = self.optional_text("metrics.listener")
        if address is None:
            return None
        host, _, port = address.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def connection_limits_by_ip(self) -> dict[str, int]:
        limits = {}
        for item in split_list(self.text("max.connections.per.ip.overrides")):
            host, _, limit = item.rpartition(":")
            limits[host.removeprefix("[").removesuffix("]")] = int(limit)
        return limits

    def policy(self) -> Policy:
        """What the controller's decisions depend on."""
        return Policy(
            num_partitions=self.integer("num.partitions"),
            default_replication_factor=self.integer("default.replication.factor"),
            is_topic_deletion_enabled=self.boolean("delete.topic.enable"),
            is_filling_enabled=self.boolean("auto.rebalance.new.brokers"),
            layers=self.layers,
        )

    # Variants.

    def with_static(self, name: str, text: str) -> BrokerConfig:
        """A copy with one setting as if it stood in the file, for what a data directory tells."""
        BROKER_SETTINGS[name].parse(text)
        static = MappingProxyType({**self.layers.static, name: text})
        return BrokerConfig(replace(self.layers, static=static))

    def with_dynamic(self, *, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """A copy with what the cluster's metadata sets for all brokers and for this one."""
        return BrokerConfig(replace(self.layers, dynamic_default=default, dynamic_broker=broker))


def load(config_file: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str]) -> BrokerConfig:
    """The configuration from all its sources, or InvalidConfig that names the key, the value and what is
    allowed."""
    static: dict[str, str] = {}
    for origin, settings in _sources(config_file, overrides, environ):
        for name, text in settings.items():
            _check_setting(name, text, origin)
            static[name] = text
    config = BrokerConfig(BrokerLayers(static=MappingProxyType(static)))
    check_config(config)
    return config


def check_config(config: BrokerConfig) -> None:
    """Refuse settings that are sound one by one but not together."""
    # Imported here, since they are about the configuration too.
    from millrace.broker.config.between_brokers import security_to_others
    from millrace.broker.config.listener_security import check_listener_security

    check_listeners(
        config.listeners, config.advertised_listeners, between_brokers=config.listener_between_brokers
    )
    check_listener_security(config)
    if config.is_clustered:
        _ = security_to_others(config)
    if config.metrics_listener is not None and config.metrics_listener[1] != 0:
        taken = [listener.port for listener in config.listeners]
        if config.metrics_listener[1] in taken:
            raise InvalidConfig(
                "metrics.listener", config.text("metrics.listener"), "its port is one of listeners' already"
            )
    if config.is_set("metrics.auth.token") and config.is_set("metrics.auth.token.file"):
        raise InvalidConfig("metrics.auth.token", None, "given beside metrics.auth.token.file: one counts")
    directories = config.log_dirs
    if not directories or len(set(directories)) != len(directories):
        raise InvalidConfig(
            "log.dirs", ",".join(directories), "directories must be there and differ from each other"
        )
    message_bytes, request_bytes = (
        config.integer("message.max.bytes"),
        config.integer("socket.request.max.bytes"),
    )
    if message_bytes > request_bytes:
        raise InvalidConfig(
            "message.max.bytes",
            str(message_bytes),
            f"larger than socket.request.max.bytes, which is {request_bytes}: such a message could never "
            f"arrive",
        )
    lag_min = config.integer("log.cleaner.min.compaction.lag.ms")
    lag_max = config.integer("log.cleaner.max.compaction.lag.ms")
    if lag_min > lag_max:
        raise InvalidConfig(
            "log.cleaner.min.compaction.lag.ms",
            str(lag_min),
            f"larger than log.cleaner.max.compaction.lag.ms, which is {lag_max}",
        )
    _check_groups(config)
    _check_cluster(config)
    _check_quorum(config)


def _check_cluster(config: BrokerConfig) -> None:
    if config.is_clustered and not config.texts("etcd.endpoints"):
        raise InvalidConfig(
            "etcd.endpoints",
            None,
            "missing, and metadata.store is etcd",
            allowed="http://host:port or https://host:port, separated by commas",
        )
    if config.is_clustered:
        for listener in config.listeners:
            if listener.host in ("", "0.0.0.0", "::") and listener.name not in config.advertised_listeners:
                raise InvalidConfig(
                    "advertised.listeners",
                    None,
                    f"has no {listener.name}, which listens on all interfaces: the other brokers of a "
                    f"cluster would not know which address to dial",
                )
    if (config.optional_text("etcd.username") is None) != (config.optional_text("etcd.password") is None):
        raise InvalidConfig("etcd.username", None, "needs etcd.password, and the other way round")
    if (config.optional_text("etcd.tls.cert.file") is None) != (
        config.optional_text("etcd.tls.key.file") is None
    ):
        raise InvalidConfig("etcd.tls.cert.file", None, "needs etcd.tls.key.file, and the other way round")
    session_ms = config.integer("broker.session.timeout.ms")
    heartbeat_ms = config.integer("broker.heartbeat.interval.ms")
    if 3 * heartbeat_ms > session_ms:
        raise InvalidConfig(
            "broker.heartbeat.interval.ms",
            str(heartbeat_ms),
            "a lost renewal would end the broker's lease",
            allowed=f"at most {session_ms // 3}, a third of broker.session.timeout.ms",
        )


def _check_quorum(config: BrokerConfig) -> None:
    """Ignore the settings of Kafka's quorum of controllers only where that breaks no promise."""
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        servers = config.texts(name)
        if len(servers) > 1 and not config.is_clustered:
            raise InvalidConfig(
                name,
                ",".join(servers),
                "several controllers make a cluster; without metadata.store=etcd this broker would be alone",
            )
    for listener in config.listeners:
        if listener.name in config.texts("controller.listener.names"):
            raise InvalidConfig(
                "controller.listener.names",
                listener.name,
                "no listener is for controllers alone, it would serve clients: take it out of listeners",
            )


def _check_groups(config: BrokerConfig) -> None:
    for kind, bounded in _BOUNDED_FOR_GROUPS.items():
        for what in bounded:
            low = config.integer(f"group.{kind}.min.{what}")
            value = config.integer(f"group.{kind}.{what}")
            high = config.integer(f"group.{kind}.max.{what}")
            if not low <= value <= high:
                raise InvalidConfig(
                    f"group.{kind}.{what}",
                    str(value),
                    f"not between group.{kind}.min.{what} and group.{kind}.max.{what}",
                    allowed=f"{low} to {high}",
                )
        session_ms = config.integer(f"group.{kind}.session.timeout.ms")
        interval_ms = config.integer(f"group.{kind}.heartbeat.interval.ms")
        if session_ms <= interval_ms:
            raise InvalidConfig(
                f"group.{kind}.session.timeout.ms",
                str(session_ms),
                f"not longer than group.{kind}.heartbeat.interval.ms, which is {interval_ms}",
            )
    standby, standby_max = (
        config.integer(f"group.streams.{what}.standby.replicas") for what in ("num", "max")
    )
    if standby > standby_max:
        raise InvalidConfig(
            "group.streams.num.standby.replicas",
            str(standby),
            "more than group.streams.max.standby.replicas",
            allowed=f"0 to {standby_max}",
        )
    sessions, size = (config.integer(f"group.share.max.{what}") for what in ("share.sessions", "size"))
    if sessions < size:
        raise InvalidConfig(
            "group.share.max.share.sessions",
            str(sessions),
            f"less than group.share.max.size, which is {size}",
        )


def _sources(
    config_file: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The settings of each source with a name for messages, weakest source first."""
    if config_file is not None:
        yield f"in {config_file}", _read_file(config_file)
    yield "given with --set", overrides
    names = {_variable(name): name for name in BROKER_SETTINGS}
    for variable in sorted(environ):
        if not variable.startswith(VARIABLE_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable.startswith(TEST_VARIABLES):
            continue
        if variable not in names:
            raise unknown_name(variable, names, "variable for a broker")
        yield f"from the variable {variable}", {names[variable]: environ[variable]}


def _variable(name: str) -> str:
    return VARIABLE_PREFIX + name.upper().replace(".", "_")


def _check_setting(name: str, text: str, origin: str) -> None:
    setting = broker_setting(name)
    if setting is not None:
        try:
            setting.parse(text)
        except InvalidConfig as error:
            reason = f"{error.reason} ({origin})"
            raise InvalidConfig(name, error.value, reason, allowed=error.allowed) from None
        return
    if name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].synonyms:
        counterpart = TOPIC_SETTINGS[name].synonyms[0].name
        raise InvalidConfig(
            name, text, f"a setting of topics ({origin}); for a broker it is called {counterpart}"
        )
    unknown = unknown_setting(name, BROKER_SETTINGS, "broker")
    # The value of a setting that we refuse may be a password, and so may that of any misspelt one.
    raise InvalidConfig(name, None, f"{unknown.reason} ({origin})")


def _read_file(path: Path) -> dict[str, str]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(str(path), None, f"cannot be read: {error}") from error
    if path.suffix == ".properties":
        return parse_properties(content)
    if path.suffix == ".toml":
        return _parse_toml(path, content)
    raise InvalidConfig(str(path), None, "its name must end in .toml or .properties")


def _parse_toml(path: Path, content: str) -> dict[str, str]:
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        hint = '; write a name that begins like another one in quotes, as "max.connections" = 100'
        raise InvalidConfig(str(path), None, f"not TOML: {error}{hint}") from error
    return dict(_flatten(document, ""))


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """`[log] retention.ms = 1` and `"log.retention.ms" = 1` mean the same."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        else:
            yield name, _toml_text(name, value)


def _toml_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    raise InvalidConfig(name, str(value), "neither a text, a number, true, false nor a list of texts")
