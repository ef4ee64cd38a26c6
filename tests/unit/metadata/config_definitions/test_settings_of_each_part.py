"""The tables of settings, part by part: each name once, and values that agree with each other."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from millrace.metadata.config_definitions.broker_audit import AUDIT_KINDS, AUDIT_SETTINGS
from millrace.metadata.config_definitions.broker_cluster import CLUSTER_SETTINGS
from millrace.metadata.config_definitions.broker_consumer_groups import (
    ASSIGNOR_NAMES,
    CONSUMER_GROUP_SETTINGS,
)
from millrace.metadata.config_definitions.broker_delayed import DELAYED_SETTINGS
from millrace.metadata.config_definitions.broker_groups import GROUP_SETTINGS
from millrace.metadata.config_definitions.broker_log import LOG_SETTINGS
from millrace.metadata.config_definitions.broker_quotas import CONNECTION_SETTINGS, QUOTA_SETTINGS
from millrace.metadata.config_definitions.broker_replication import REPLICATION_SETTINGS
from millrace.metadata.config_definitions.broker_sasl import SASL_SETTINGS
from millrace.metadata.config_definitions.broker_security import SECURITY_SETTINGS, STANDARD_AUTHORIZER
from millrace.metadata.config_definitions.broker_server import SERVER_SETTINGS
from millrace.metadata.config_definitions.broker_share_groups import SHARE_GROUP_SETTINGS
from millrace.metadata.config_definitions.broker_share_state import SHARE_STATE_SETTINGS
from millrace.metadata.config_definitions.broker_streams_groups import STREAMS_GROUP_SETTINGS
from millrace.metadata.config_definitions.broker_transactions import TRANSACTION_SETTINGS
from millrace.metadata.config_definitions.model import ConfigType, Importance, Setting, UpdateMode
from millrace.metadata.config_definitions.tables import BROKER_SETTINGS, GROUP_OWN_SETTINGS, TOPIC_SETTINGS
from millrace.metadata.config_definitions.topic import OWN_TOPIC_SETTINGS
from millrace.metadata.config_definitions.without_effect import SERVER_WITHOUT_EFFECT
from millrace.metadata.config_definitions.without_effect_features import (
    FEATURES_WITHOUT_EFFECT,
    TOPICS_WITHOUT_EFFECT,
)
from millrace.metadata.config_definitions.without_effect_model import ONLY_FALSE, Row, because
from millrace.metadata.errors import InvalidConfig
from millrace.security.audit.events import DEFAULT_KINDS, Kind

WITH_EFFECT = (
    *AUDIT_SETTINGS,
    *CLUSTER_SETTINGS,
    *CONSUMER_GROUP_SETTINGS,
    *DELAYED_SETTINGS,
    *GROUP_SETTINGS,
    *LOG_SETTINGS,
    *REPLICATION_SETTINGS,
    *SASL_SETTINGS,
    *SECURITY_SETTINGS,
    *SERVER_SETTINGS,
    *SHARE_GROUP_SETTINGS,
    *STREAMS_GROUP_SETTINGS,
    *QUOTA_SETTINGS,
    *CONNECTION_SETTINGS,
    *TRANSACTION_SETTINGS,
    *SHARE_STATE_SETTINGS,
)
WITHOUT_EFFECT = (*SERVER_WITHOUT_EFFECT, *FEATURES_WITHOUT_EFFECT)


def test_no_broker_setting_is_in_two_parts() -> None:
    names = Counter(setting.name for setting in (*WITH_EFFECT, *WITHOUT_EFFECT))
    assert [name for name, count in names.items() if count > 1] == []
    assert set(names) == set(BROKER_SETTINGS)


def test_no_topic_setting_is_in_two_parts() -> None:
    names = [*OWN_TOPIC_SETTINGS, *(setting.name for setting in TOPICS_WITHOUT_EFFECT)]
    assert len(names) == len(set(names)) == len(TOPIC_SETTINGS)


@pytest.mark.parametrize(
    "settings, expected",
    [(WITH_EFFECT, False), (tuple(OWN_TOPIC_SETTINGS.values()), False), (WITHOUT_EFFECT, True)],
)
def test_only_settings_without_effect_say_why_they_have_none(
    settings: tuple[Setting, ...], expected: bool
) -> None:
    wrong = [setting.name for setting in settings if bool(setting.without_effect) is not expected]
    assert wrong == []


@pytest.mark.parametrize(
    "setting",
    [*WITH_EFFECT, *WITHOUT_EFFECT, *TOPIC_SETTINGS.values(), *GROUP_OWN_SETTINGS.values()],
    ids=lambda setting: setting.name,
)
def test_a_setting_is_named_and_described_as_kafka_does(setting: Setting) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(\.[a-z0-9]+)*", setting.name)
    assert setting.doc.endswith("."), setting.doc
    assert setting.doc == " ".join(setting.doc.split()), "a blank too many, or a line's end"
    assert setting.sensitive is (setting.type is ConfigType.PASSWORD)
    for synonym in setting.synonyms:
        assert synonym.name in BROKER_SETTINGS, synonym


@pytest.mark.parametrize("setting", LOG_SETTINGS, ids=lambda setting: setting.name)
def test_a_default_for_topics_is_allowed_for_topics(setting: Setting) -> None:
    for topic in OWN_TOPIC_SETTINGS.values():
        if setting.name in [synonym.name for synonym in topic.synonyms] and len(topic.synonyms) == 1:
            assert (setting.type, setting.default, setting.valid) == (topic.type, topic.default, topic.valid)
            assert topic.doc in setting.doc
            assert setting.update is UpdateMode.CLUSTER_WIDE


@pytest.mark.parametrize(
    "low, between, high",
    [
        (
            "group.consumer.min.session.timeout.ms",
            "group.consumer.session.timeout.ms",
            "group.consumer.max.session.timeout.ms",
        ),
        (
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
        ),
        ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", None),
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms", None),
        *(
            (f"group.share.min.{what}", f"group.share.{what}", f"group.share.max.{what}")
            for what in (
                "record.lock.duration.ms",
                "delivery.count.limit",
                "partition.max.record.locks",
                "heartbeat.interval.ms",
                "session.timeout.ms",
                "assignment.interval.ms",
            )
        ),
        *(
            (f"group.streams.min.{what}", f"group.streams.{what}", f"group.streams.max.{what}")
            for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
        ),
        ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas", None),
        ("group.share.max.size", "group.share.max.share.sessions", None),
    ],
)
def test_defaults_that_bound_each_other_are_in_order(low: str, between: str, high: str | None) -> None:
    values = [BROKER_SETTINGS[name].default for name in (low, between, high) if name is not None]
    assert all(isinstance(value, int) for value in values)
    assert values == sorted(values)  # type: ignore[type-var]


def test_a_group_has_the_defaults_of_its_broker() -> None:
    for setting in GROUP_OWN_SETTINGS.values():
        for synonym in setting.synonyms:
            behind = BROKER_SETTINGS[synonym.name]
            assert (setting.type, setting.default, setting.valid) == (
                behind.type,
                behind.default,
                behind.valid,
            )


@pytest.mark.parametrize(
    "name, accepted, refused",
    [
        ("group.consumer.assignors", ["uniform", "range,uniform"], ["", "uniform,uniform", "sticky"]),
        (
            "etcd.endpoints",
            ["a:2379", "http://a:1,https://b:65535"],
            ["a", "ftp://a:1", "http://:1", "a:0", "a:65536"],
        ),
        (
            "max.connections.per.ip.overrides",
            ["", "10.0.0.1:5", "a:1,::1:2"],
            ["a", "a:", ":1", "a:-1", "a:2147483648"],
        ),
        ("process.roles", ["broker", "broker,controller"], ["controller", "broker,king"]),
        ("super.users", ["", "User:a", "User:CN=a, OU=b;User:c;"], ["a", "User:", ":a", "User:a;b"]),
        ("authorizer.class.name", ["", STANDARD_AUTHORIZER], ["mine", "AclAuthorizer"]),
    ],
)
def test_a_rule_in_code_takes_what_its_words_say(name: str, accepted: list[str], refused: list[str]) -> None:
    setting = BROKER_SETTINGS[name]
    for text in accepted:
        setting.parse(text)
    for text in refused:
        with pytest.raises(InvalidConfig, match="not allowed"):
            setting.parse(text)


def test_the_first_assignor_is_the_one_of_kafka() -> None:
    assert ASSIGNOR_NAMES[0] == "uniform"
    assert BROKER_SETTINGS["group.consumer.assignors"].default == ASSIGNOR_NAMES


def test_many_settings_without_effect_share_a_reason() -> None:
    rows = because(
        "nobody needs it",
        Row("some.threads", ConfigType.INT, 3, low=1, high=9),
        Row("some.switch", ConfigType.BOOLEAN, False, valid=ONLY_FALSE, update=UpdateMode.PER_BROKER),
    )
    assert [row.name for row in rows] == ["some.threads", "some.switch"]
    assert {row.without_effect for row in rows} == {"nobody needs it"}
    assert {row.doc for row in rows} == {"Accepted, without effect: nobody needs it."}
    assert {row.importance for row in rows} == {Importance.LOW}
    assert (rows[0].allowed(), rows[1].allowed()) == ("1 to 9", "false")
    assert rows[1].update is UpdateMode.PER_BROKER
    with pytest.raises(InvalidConfig, match="not allowed"):
        rows[1].parse("true")


def test_the_audit_cannot_be_changed_over_the_wire_and_knows_the_kinds_of_its_rules() -> None:
    assert {setting.update for setting in AUDIT_SETTINGS} == {UpdateMode.READ_ONLY}
    assert tuple(Kind) == AUDIT_KINDS
    assert BROKER_SETTINGS["audit.event.types"].default == tuple(DEFAULT_KINDS)
