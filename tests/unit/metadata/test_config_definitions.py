"""The table of settings against itself and against what Apache Kafka 4.3 has, and the order of strength."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.log.config import LogConfig
from millrace.metadata.config_definitions import (
    BROKER_SETTINGS,
    KAFKA_ONLY,
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
    to_log_config,
    topic_settings,
    topic_value,
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


def test_settings_without_meaning_here_are_not_also_settings() -> None:
    assert not KAFKA_ONLY.keys() & BROKER_SETTINGS.keys()


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
        assert (f"### `{setting.name}`\n" in page) is not setting.internal
