"""The table of settings against itself and against what Apache Kafka 4.3 has, and the order of strength."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.log.config import LogConfig
from millrace.metadata.config_definitions import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerLayers,
    ConfigSource,
    ConfigType,
    Setting,
    UpdateMode,
    check_topic_configs,
    describe_broker,
    describe_topic,
    format_value,
    refusal,
    to_log_config,
    topic_settings,
    topic_value,
    unknown_setting,
)
from millrace.metadata.config_definitions.markdown import render_markdown
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


def test_what_is_refused_is_not_also_a_setting() -> None:
    refused = [name for name in [*BROKER_SETTINGS, *TOPIC_SETTINGS] if refusal(name) is not None]
    assert not refused


SECRETS_AND_GUARDS = (
    *("sasl.enabled.mechanisms", "sasl.jaas.config", "ssl.client.auth", "ssl.keystore.password"),
    *("listener.name.internal.ssl.keystore.location", "delegation.token.secret.key", "security.providers"),
    *("authorizer.class.name", "super.users", "principal.builder.class", "connections.max.reauth.ms"),
    *("quota.window.num", "client.quota.callback.class", "max.connection.creation.rate"),
    *("create.topic.policy.class.name", "alter.config.policy.class.name", "cordoned.log.dirs"),
)


@pytest.mark.parametrize("name", SECRETS_AND_GUARDS)
def test_what_guards_something_in_kafka_is_refused_with_the_reason(name: str) -> None:
    assert name not in BROKER_SETTINGS
    error = unknown_setting(name, BROKER_SETTINGS, "broker")
    assert "a setting of Kafka that is not accepted: ignoring it would" in str(error) or "listener" in str(
        error
    )


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
        ("security.inter.broker.protocol", "SSL"),
        ("process.roles", "controller"),
    ):
        with pytest.raises(InvalidConfig, match="not allowed"):
            BROKER_SETTINGS[name].parse(refused)
    with pytest.raises(InvalidConfig, match="not allowed"):
        check_topic_configs({"remote.storage.enable": "true"})
    check_topic_configs({"remote.storage.enable": "false", "local.retention.ms": "-2"})


def test_a_setting_without_effect_is_described_with_its_value_and_its_source() -> None:
    layers = BrokerLayers(static={"num.io.threads": "16"}, dynamic_default={"log.cleaner.threads": "2"})
    names = ["num.io.threads", "log.cleaner.threads", "num.network.threads"]
    described = [(entry.name, entry.value, entry.source) for entry in describe_broker(layers, names)]
    assert described == [
        ("num.io.threads", "16", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.cleaner.threads", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("num.network.threads", "3", ConfigSource.DEFAULT_CONFIG),
    ]


def test_the_page_lists_settings_without_effect_apart_from_the_others() -> None:
    page = render_markdown()
    assert "### `log.cleaner.threads`" not in page
    apart = page[
        page.index("## Accepted, without effect") : page.index("## Settings of Kafka that are refused")
    ]
    missing = [s.name for s in ALL_SETTINGS if s.without_effect and f"| `{s.name}` |" not in apart]
    assert not missing
    assert "| `ssl.*` |" in page


def test_a_chain_of_units_is_resolved_in_order() -> None:
    hours = {"log.retention.hours": "2"}
    minutes = {**hours, "log.retention.minutes": "3"}
    milliseconds = {**minutes, "log.retention.ms": "4"}
    for static, expected in (({}, 604_800_000), (hours, 7_200_000), (minutes, 180_000), (milliseconds, 4)):
        assert topic_value("retention.ms", {}, BrokerLayers(static=static)) == expected
    assert topic_value("retention.ms", {"retention.ms": "5"}, BrokerLayers(static=milliseconds)) == 5
    assert topic_value("retention.ms", {}, BrokerLayers(static={"log.retention.hours": "-1"})) == -1


def test_a_dynamic_value_counts_before_a_static_one_of_any_unit() -> None:
    layers = BrokerLayers(
        static={"log.roll.ms": "1"}, dynamic_default={"log.roll.ms": "2"}, dynamic_broker={"log.roll.ms": "3"}
    )
    assert topic_value("segment.ms", {}, layers) == 3
    (entry,) = describe_topic({"segment.ms": "4"}, layers, ["segment.ms"])
    assert (entry.value, entry.source) == ("4", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms] == [
        ("segment.ms", "4", 1),
        ("log.roll.ms", "3", 2),
        ("log.roll.ms", "2", 3),
        ("log.roll.ms", "1", 4),
        ("log.roll.hours", "168", 5),
    ]


def test_a_described_broker_setting_shows_its_own_value_and_what_stands_behind_it() -> None:
    layers = BrokerLayers(static={"log.retention.ms": "9"})
    (entry,) = describe_broker(layers, ["log.retention.ms", "no.such.setting"])
    assert (entry.value, entry.source, entry.is_read_only) == ("9", ConfigSource.STATIC_BROKER_CONFIG, False)
    assert [(synonym.name, synonym.value) for synonym in entry.synonyms] == [
        ("log.retention.ms", "9"),
        ("log.retention.hours", "168"),
    ]
    (unset,) = describe_broker(BrokerLayers(), ["log.retention.ms"])
    assert (unset.value, unset.source, unset.synonyms) == (None, ConfigSource.DEFAULT_CONFIG, ())


def test_everything_is_described_when_no_name_is_given() -> None:
    assert len(describe_broker(BrokerLayers())) == len(BROKER_SETTINGS)
    names = [entry.name for entry in describe_topic({}, BrokerLayers())]
    assert "retention.ms" in names
    assert "internal.segment.bytes" not in names


def test_the_log_gets_every_setting_that_it_knows() -> None:
    assert to_log_config({}, BrokerLayers()) == LogConfig(flush_ms=1_000)
    changed = to_log_config(
        {
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "internal.segment.bytes": "100",
            "batch.validation": "deep",
            "min.cleanable.dirty.ratio": "0.1",
            "max.decompressed.message.bytes": "7",
        },
        BrokerLayers(dynamic_default={"producer.id.expiration.ms": "6"}),
    )
    assert changed == LogConfig(
        cleanup_compact=True,
        cleanup_delete=False,
        timestamp_log_append=True,
        segment_bytes=100,
        deep_validation=True,
        min_cleanable_dirty_ratio=0.1,
        max_decompressed_message_bytes=7,
        producer_id_expiration_ms=6,
        flush_ms=1_000,
    )
    assert topic_settings({"min.insync.replicas": "2"}, BrokerLayers()).min_insync_replicas == 2


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("retention.ms", "soon", "not a whole number"),
        ("retention.ms", "1_000", "not a whole number"),
        ("retention.ms", "9223372036854775808", "out of range"),
        ("segment.bytes", "2147483648", "out of range"),
        ("segment.bytes", "1000", "at least 1048576"),
        ("compression.gzip.level", "0", "1 to 9, or -1"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "delete,delete", "each at most once"),
        ("min.cleanable.dirty.ratio", "nan", "0 to 1"),
        ("min.cleanable.dirty.ratio", "1.5", "0 to 1"),
        ("compression.type", "brotli", "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason) as caught:
        check_topic_configs({name: text})
    assert f"{name}={text}" in str(caught.value)


def test_an_unknown_name_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidConfig, match="did you mean retention"):
        check_topic_configs({"retentoin.ms": "1"})


@given(st.sampled_from(ALL_SETTINGS), st.text(max_size=12))
def test_any_text_is_a_value_or_a_clean_refusal(setting: Setting, text: str) -> None:
    try:
        value = setting.parse(text)
    except InvalidConfig:
        return
    formatted = format_value(value)
    assert formatted is not None
    assert setting.parse(formatted) == value


def test_the_page_names_every_setting() -> None:
    page = render_markdown()
    for setting in ALL_SETTINGS:
        has_section = not setting.internal and not setting.without_effect
        assert (f"### `{setting.name}`\n" in page) is has_section
