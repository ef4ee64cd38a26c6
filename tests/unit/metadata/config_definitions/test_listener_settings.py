"""Settings of a listener and of its mechanisms: their names, and which value counts."""

from __future__ import annotations

import pytest

from millrace.metadata.config_definitions import BrokerLayers, describe_broker, listener_value
from millrace.metadata.config_definitions.listener_settings import (
    OF_LISTENERS,
    ListenerName,
    broker_setting,
    names_for,
    split_name,
)
from millrace.metadata.config_definitions.model import ConfigSource

JAAS = "listener.name.internal.scram-sha-256.sasl.jaas.config"


@pytest.mark.parametrize(
    "name, found",
    [
        ("listener.name.a.ssl.client.auth", ListenerName("a", None, "ssl.client.auth")),
        ("listener.name.a.b.ssl.keystore.key", ListenerName("a.b", None, "ssl.keystore.key")),
        (JAAS, ListenerName("internal", "SCRAM-SHA-256", "sasl.jaas.config")),
        (
            "listener.name.a.oauthbearer.connections.max.reauth.ms",
            ListenerName("a", "OAUTHBEARER", "connections.max.reauth.ms"),
        ),
        # Only a mechanism has a JAAS configuration.
        ("listener.name.a.sasl.jaas.config", None),
        ("listener.name.ssl.client.auth", None),
        ("listener.name.a.log.retention.ms", None),
        ("ssl.client.auth", None),
    ],
)
def test_a_name_tells_whose_setting_it_is(name: str, found: ListenerName | None) -> None:
    assert split_name(name) == found
    if found is not None:
        setting = broker_setting(name)
        assert setting is not None
        assert (setting.name, setting.type) == (name, OF_LISTENERS[found.setting].type)
        assert setting.sensitive == OF_LISTENERS[found.setting].sensitive


def test_the_value_that_is_set_for_the_fewest_counts() -> None:
    name = "connections.max.reauth.ms"
    assert names_for(name, "In", "PLAIN") == (
        f"listener.name.in.plain.{name}",
        f"listener.name.in.{name}",
        name,
    )
    static = {name: "1"}
    assert listener_value(name, BrokerLayers(static=static), "IN", "PLAIN") == 1
    static[f"listener.name.in.{name}"] = "2"
    assert listener_value(name, BrokerLayers(static=static), "IN", "PLAIN") == 2
    static[f"listener.name.in.plain.{name}"] = "3"
    layers = BrokerLayers(static=static, dynamic_broker={name: "9"})
    assert listener_value(name, layers, "IN", "PLAIN") == 3
    assert listener_value(name, layers, "IN") == 2
    assert listener_value(name, layers, "OUT", "PLAIN") == 9
    assert listener_value(name, BrokerLayers(), "OUT") == 0


def test_what_is_set_for_a_listener_is_described_and_secrets_are_not_shown() -> None:
    auth = "listener.name.a.ssl.client.auth"
    layers = BrokerLayers(static={auth: "required", JAAS: "hunter2"})
    entries = {entry.name: entry for entry in describe_broker(layers)}
    assert entries[auth].value == "required"
    assert entries[auth].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries[JAAS].value is None
    assert entries[JAAS].is_sensitive
    assert "hunter2" not in repr(entries)
    (entry,) = describe_broker(layers, [auth])
    assert entry == entries[auth]
    assert describe_broker(BrokerLayers(), [auth]) == []
