"""No object that is made of the configuration shows a secret, whatever is printed, logged or in a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.assembly import part_settings
from millrace.broker.config.config import BrokerConfig, load
from millrace.broker.config.listener_security import login_settings, of_listener, tls_settings
from millrace.core.ids import NodeId
from millrace.metadata.commands import (
    Alteration,
    AlterConfigs,
    AlterOperation,
    BrokerResource,
    Policy,
    ReplaceConfigs,
)
from millrace.metadata.config_definitions import BrokerLayers, describe_broker
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.image import EMPTY

SECRET = "hunter2-hunter2-hunter2"
JAAS = "listener.name.sasl_ssl.plain.sasl.jaas.config"
SETTINGS = {
    "node.id": "1",
    "metadata.store": "etcd",
    "etcd.endpoints": "http://127.0.0.1:1",
    "etcd.username": "millrace",
    "etcd.password": SECRET,
    "listeners": "SASL_SSL://127.0.0.1:9092",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    JAAS: f'PlainLoginModule required username="a" password="{SECRET}" user_a="{SECRET}";',
    "ssl.keystore.key": SECRET,
    "ssl.keystore.certificate.chain": SECRET,
    "ssl.key.password": SECRET,
    "ssl.truststore.certificates": SECRET,
    "delegation.token.secret.key": SECRET,
    "metrics.auth.token": SECRET,
    "metrics.ssl.key.password": SECRET,
}


@pytest.fixture(scope="module")
def config() -> BrokerConfig:
    return load(None, SETTINGS, {})


def test_no_settings_of_a_part_show_one(config: BrokerConfig) -> None:
    (listener,) = config.listeners
    shown = [
        config,
        config.layers,
        of_listener(config, "sasl_ssl", "PLAIN"),
        tls_settings(config, listener),
        login_settings(config, listener),
        part_settings.http_security(config),
        part_settings.etcd_settings(config),
        part_settings.replication_settings(config),
        part_settings.token_settings(config),
        Policy(layers=config.layers),
    ]
    for each in shown:
        assert "hunter2" not in repr(each), type(each)


def test_no_description_of_the_settings_shows_one(config: BrokerConfig) -> None:
    entries = describe_broker(config.layers)
    assert {entry.name for entry in entries} >= {"etcd.password", JAAS}
    assert "hunter2" not in repr(entries)


def test_no_change_of_settings_shows_one() -> None:
    resource = BrokerResource(NodeId(1))
    alteration = Alteration(JAAS, AlterOperation.SET, SECRET)
    configs = {JAAS: SECRET}
    image = replace(EMPTY, broker_configs={NodeId(1): configs}, default_broker_config=configs)
    layers = BrokerLayers(dynamic_broker=configs, dynamic_default=configs, static=configs)
    shown = [
        alteration,
        AlterConfigs(resource, [alteration]),
        ReplaceConfigs(resource, configs),
        image,
        layers,
    ]
    for each in shown:
        assert "hunter2" not in repr(each), type(each)


@pytest.mark.parametrize("bad", [
    {JAAS: f"hunter2 {SECRET}"},
    {JAAS: f'PlainLoginModule required user_a="{SECRET}'},
    {JAAS: f"PlainLoginModule {SECRET};"},
    {"listener.name.other.plain.sasl.jaas.config": SECRET},
    {"sasl.jaas.config": SECRET},
    {"etcd.pasword": SECRET},
    {"metrics.auth.tokn": SECRET},
    {"ssl.keystore.location": "/k.pem"},
    {"zookeeper.ssl.keystore.password": SECRET},
    {"password.encoder.secret": SECRET},
])  # fmt: skip
def test_no_refusal_of_settings_shows_one(bad: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(None, SETTINGS | bad, {})
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value)
