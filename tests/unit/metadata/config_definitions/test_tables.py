"""The table of settings against itself and against what Apache Kafka 4.3 has, and the order of strength."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.metadata.config_definitions import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerLayers,
    ConfigType,
    Setting,
    UpdateMode,
    check_topic_configs,
    format_value,
    topic_value,
)
from millrace.metadata.errors import InvalidConfig

ALL_SETTINGS = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]

# name: type, default. What org.apache.kafka.storage.internals.log.LogConfig of Kafka 4.3.1 says.
KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": ("LIST", "delete"),
    "compression.gzip.level": ("INT", "-1"),
    "compression.lz4.level": ("INT", "9"),
    "compression.type": ("STRING", "producer"),
    "compression.zstd.level": ("INT", "3"),
    "delete.retention.ms": ("LONG", "86400000"),
    "file.delete.delay.ms": ("LONG", "60000"),
    "flush.messages": ("LONG", "9223372036854775807"),
    "index.interval.bytes": ("INT", "4096"),
    "max.compaction.lag.ms": ("LONG", "9223372036854775807"),
    "max.message.bytes": ("INT", "1048588"),
    "message.timestamp.after.max.ms": ("LONG", "3600000"),
    "message.timestamp.before.max.ms": ("LONG", "9223372036854775807"),
    "message.timestamp.type": ("STRING", "CreateTime"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5"),
    "min.compaction.lag.ms": ("LONG", "0"),
    "min.insync.replicas": ("INT", "1"),
    "preallocate": ("BOOLEAN", "false"),
    "retention.bytes": ("LONG", "-1"),
    "retention.ms": ("LONG", "604800000"),
    "segment.bytes": ("INT", "1073741824"),
    "segment.index.bytes": ("INT", "10485760"),
    "segment.jitter.ms": ("LONG", "0"),
    "segment.ms": ("LONG", "604800000"),
    "unclean.leader.election.enable": ("BOOLEAN", "false"),
}


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_accepts_its_own_default(setting: Setting) -> None:
    text = format_value(setting.default)
    if text is not None:
        assert setting.parse(text) == setting.default
    assert setting.doc.endswith(".")
    assert setting.allowed()


@pytest.mark.parametrize("name", KAFKA_TOPIC_DEFAULTS)
def test_topic_defaults_are_those_of_kafka(name: str) -> None:
    type_, default = KAFKA_TOPIC_DEFAULTS[name]
    assert TOPIC_SETTINGS[name].type is ConfigType[type_]
    assert format_value(topic_value(name, {}, BrokerLayers())) == default


@pytest.mark.parametrize("setting", TOPIC_SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_topic_setting_and_its_broker_settings_have_the_same_default(setting: Setting) -> None:
    assert topic_value(setting.name, {}, BrokerLayers()) == setting.default
    assert setting.update is UpdateMode.CLUSTER_WIDE


def test_no_setting_without_effect_is_about_security_or_a_secret() -> None:
    for setting in ALL_SETTINGS:
        if setting.without_effect:
            assert setting.type is not ConfigType.PASSWORD, setting.name
            words = setting.name.split(".")
            assert not {"sasl", "ssl", "password", "authorizer", "token"} & set(words), setting.name


def test_what_can_only_stay_off_here_cannot_be_turned_on() -> None:
    for name, refused in (
        ("remote.log.storage.system.enable", "true"),
        ("transaction.two.phase.commit.enable", "true"),
        ("process.roles", "controller"),
    ):
        with pytest.raises(InvalidConfig, match="not allowed"):
            BROKER_SETTINGS[name].parse(refused)
    with pytest.raises(InvalidConfig, match="not allowed"):
        check_topic_configs({"remote.storage.enable": "true"})
    check_topic_configs({"remote.storage.enable": "false", "local.retention.ms": "-2"})


@given(st.sampled_from(ALL_SETTINGS), st.text(max_size=12))
def test_any_text_is_a_value_or_a_clean_refusal(setting: Setting, text: str) -> None:
    try:
        value = setting.parse(text)
    except InvalidConfig:
        return
    formatted = format_value(value)
    assert formatted is not None
    assert setting.parse(formatted) == value
