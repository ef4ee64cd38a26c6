"""Which value counts, and where it comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.log.config import LogConfig
from millrace.metadata.config_definitions.model import ConfigSource, ConfigType, Setting
from millrace.metadata.config_definitions.resolution import (
    BrokerLayers,
    broker_value,
    check_group_configs,
    check_topic_configs,
    describe_broker,
    describe_group,
    describe_topic,
    group_value,
    to_log_config,
    topic_settings,
    topic_value,
)
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, GROUP_OWN_SETTINGS
from millrace.metadata.errors import InvalidConfig


def test_a_setting_without_effect_is_described_with_its_value_and_its_source() -> None:
    layers = BrokerLayers(static={"num.io.threads": "16"}, dynamic_default={"log.cleaner.threads": "2"})
    names = ["num.io.threads", "log.cleaner.threads", "num.network.threads"]
    described = [(entry.name, entry.value, entry.source) for entry in describe_broker(layers, names)]
    assert described == [
        ("num.io.threads", "16", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.cleaner.threads", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("num.network.threads", "3", ConfigSource.DEFAULT_CONFIG),
    ]


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


TEXTS = st.none() | st.integers(1, 10**9).map(str)


@given(broker=TEXTS, default=TEXTS, static=TEXTS)
def test_the_strongest_layer_that_has_a_value_counts(
    broker: str | None, default: str | None, static: str | None
) -> None:
    name = "log.retention.ms"
    layers = BrokerLayers(
        *({} if text is None else {name: text} for text in (broker, default, static)),
    )
    strongest = next((text for text in (broker, default, static) if text is not None), None)
    assert broker_value(name, layers) == (None if strongest is None else int(strongest))


def test_a_secret_is_described_without_its_value_anywhere() -> None:
    secrets = [setting for setting in BROKER_SETTINGS.values() if setting.sensitive]
    assert secrets
    for setting in secrets:
        assert setting.type is ConfigType.PASSWORD
        (entry,) = describe_broker(
            BrokerLayers(static={setting.name: "M required x=hunter2;"}), [setting.name]
        )
        assert entry.is_sensitive
        assert "hunter2" not in repr(entry)


@pytest.mark.parametrize("setting", BROKER_SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_described_setting_has_the_value_that_counts(setting: Setting) -> None:
    (entry,) = describe_broker(BrokerLayers(), [setting.name])
    assert (entry.name, entry.type, entry.documentation) == (setting.name, setting.type, setting.doc)
    assert entry.source is ConfigSource.DEFAULT_CONFIG
    if entry.value is not None:
        assert setting.parse(entry.value) == broker_value(setting.name, BrokerLayers())


def test_a_group_takes_its_own_value_before_the_brokers() -> None:
    layers = BrokerLayers(static={"group.consumer.session.timeout.ms": "50000"})
    name = "consumer.session.timeout.ms"
    assert group_value(name, {}, layers) == 50_000
    assert group_value(name, {name: "46000"}, layers) == 46_000
    (entry,) = describe_group({name: "46000"}, layers, [name])
    assert (entry.value, entry.source) == ("46000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [(synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("46000", ConfigSource.DYNAMIC_GROUP_CONFIG),
        ("50000", ConfigSource.STATIC_BROKER_CONFIG),
        ("45000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert [each.name for each in describe_group({}, layers)] == list(GROUP_OWN_SETTINGS)


def test_a_group_may_set_what_the_broker_allows() -> None:
    check_group_configs({"consumer.session.timeout.ms": "60000"}, BrokerLayers())
    for text in ("44999", "60001"):
        with pytest.raises(InvalidConfig, match="45000 to 60000"):
            check_group_configs({"consumer.session.timeout.ms": text}, BrokerLayers())


def test_a_session_must_be_longer_than_the_interval_of_its_heartbeats() -> None:
    layers = BrokerLayers(static={"group.consumer.min.session.timeout.ms": "1"})
    session = {"consumer.session.timeout.ms": "5000"}
    with pytest.raises(InvalidConfig, match=r"not longer than consumer\.heartbeat\.interval\.ms"):
        check_group_configs(session, layers)
    check_group_configs({"consumer.session.timeout.ms": "5001"}, layers)


@pytest.mark.parametrize(
    "configs, why",
    [
        ({"share.record.lock.duration.ms": "999"}, "1000 to 43200000"),
        ({"share.delivery.count.limit": "0"}, "1 to 1000"),
        ({"share.partition.max.record.locks": "4001"}, "100 to 4000"),
        ({"share.session.timeout.ms": "44999"}, "45000 to 60000"),
        ({"share.assignment.interval.ms": "15001"}, "0 to 15000"),
        ({"share.auto.offset.reset": "by_duration:1h"}, "as in by_duration:PT1H"),
        ({"share.isolation.level": "serializable"}, "read_uncommitted, read_committed"),
        ({"share.order": "value"}, "none, key"),
        ({"share.dlq.breaker.ratio": "1.1"}, "0 to 1"),
        ({"errors.deadletterqueue.topic.name": "__dead"}, "does not begin with __"),
        ({"share.retry.backoff.ms": "300001"}, r"larger than share\.retry\.backoff\.max\.ms"),
        ({"streams.session.timeout.ms": "44999"}, "45000 to 60000"),
        ({"streams.assignment.interval.ms": "15001"}, "0 to 15000"),
        ({"streams.num.standby.replicas": "3"}, "0 to 2"),
        ({"streams.initial.rebalance.delay.ms": "-1"}, "at least 0"),
    ],
)
def test_a_share_or_streams_group_may_not_be_given(configs: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        check_group_configs(configs, BrokerLayers())


def test_a_share_group_may_be_given_what_is_its_own() -> None:
    configs = {
        "share.record.lock.duration.ms": "43200000",
        "share.delivery.count.limit": "1000",
        "share.auto.offset.reset": "by_duration:PT1H",
        "share.retry.backoff.ms": "1000",
        "errors.deadletterqueue.topic.name": "dead",
    }
    check_group_configs(configs, BrokerLayers())
    assert group_value("share.order", configs, BrokerLayers()) == "none", "it has no setting of the broker"
    assert group_value("share.delivery.count.limit", configs, BrokerLayers()) == 1_000
    layers = BrokerLayers(static={"group.share.delivery.count.limit": "7"})
    assert group_value("share.delivery.count.limit", {}, layers) == 7


def test_the_least_lag_of_compaction_may_not_exceed_the_largest() -> None:
    check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig, match=r"larger than max\.compaction\.lag\.ms, which is 5"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
