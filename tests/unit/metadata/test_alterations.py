from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.core.ids import NodeId
from millrace.metadata.alterations import altered_configs, replaced_configs
from millrace.metadata.commands import (
    Alteration,
    AlterConfigs,
    AlterOperation,
    BrokerResource,
    ConfigResource,
    GroupResource,
    Policy,
    ReplaceConfigs,
    TopicResource,
)
from millrace.metadata.config_definitions import BrokerLayers
from millrace.metadata.controller import decide
from millrace.metadata.errors import (
    ContradictoryRequest,
    InvalidConfig,
    MetadataError,
    SettingNotDynamic,
    UnknownTopic,
)
from tests.unit.metadata.worlds import apply, cluster, new_topic

SET, DELETE, APPEND, SUBTRACT = AlterOperation
ORDERS = TopicResource("orders")
ALL_BROKERS = BrokerResource(None)
BROKER_1 = BrokerResource(NodeId(1))
IMAGE = apply(
    cluster(None), new_topic("orders", 1, configs={"retention.ms": "5", "cleanup.policy": "compact"})
)


def alter(
    resource: ConfigResource, *alterations: Alteration, static: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    return altered_configs(IMAGE, resource, alterations, BrokerLayers(static=static or {}))


@pytest.mark.parametrize(
    "alteration, expected",
    [
        (Alteration("retention.ms", SET, "7"), {"retention.ms": "7", "cleanup.policy": "compact"}),
        (
            Alteration("segment.ms", SET, "7"),
            {"retention.ms": "5", "cleanup.policy": "compact", "segment.ms": "7"},
        ),
        (Alteration("retention.ms", DELETE, None), {"cleanup.policy": "compact"}),
        (Alteration("segment.ms", DELETE, None), {"retention.ms": "5", "cleanup.policy": "compact"}),
        (
            Alteration("cleanup.policy", APPEND, "delete"),
            {"retention.ms": "5", "cleanup.policy": "compact,delete"},
        ),
        (Alteration("cleanup.policy", APPEND, "compact"), {"retention.ms": "5", "cleanup.policy": "compact"}),
        (Alteration("cleanup.policy", SUBTRACT, "compact"), {"retention.ms": "5", "cleanup.policy": ""}),
        (
            Alteration("cleanup.policy", SUBTRACT, "delete"),
            {"retention.ms": "5", "cleanup.policy": "compact"},
        ),
    ],
)
def test_one_alteration_leaves_the_other_settings(alteration: Alteration, expected: dict[str, str]) -> None:
    assert alter(ORDERS, alteration) == expected


def test_appending_starts_from_the_value_that_counts_now() -> None:
    image = apply(cluster(None), new_topic("plain", 1))
    for static, expected in (({}, "delete,compact"), ({"log.cleanup.policy": "compact"}, "compact")):
        configs = altered_configs(
            image,
            TopicResource("plain"),
            [Alteration("cleanup.policy", APPEND, "compact")],
            BrokerLayers(static=static),
        )
        assert configs == {"cleanup.policy": expected}


@pytest.mark.parametrize(
    "resource, alteration, error",
    [
        (TopicResource("absent"), Alteration("retention.ms", SET, "1"), UnknownTopic),
        (ORDERS, Alteration("retention.msec", SET, "1"), InvalidConfig),
        (ORDERS, Alteration("retention.ms", SET, "-2"), InvalidConfig),
        (ORDERS, Alteration("retention.ms", SET, None), ContradictoryRequest),
        (ORDERS, Alteration("retention.ms", APPEND, "1"), InvalidConfig),
        (ORDERS, Alteration("cleanup.policy", APPEND, "shred"), InvalidConfig),
        (ORDERS, Alteration("log.retention.ms", SET, "1"), InvalidConfig),
        (ALL_BROKERS, Alteration("retention.ms", SET, "1"), InvalidConfig),
        (ALL_BROKERS, Alteration("node.id", SET, "7"), SettingNotDynamic),
        (BROKER_1, Alteration("listeners", SET, "PLAINTEXT://:1"), SettingNotDynamic),
        (BROKER_1, Alteration("max.connections", SET, "many"), InvalidConfig),
    ],
)
def test_what_is_refused(
    resource: ConfigResource, alteration: Alteration, error: type[MetadataError]
) -> None:
    with pytest.raises(error):
        alter(resource, alteration)


def test_a_setting_altered_twice_is_a_contradiction() -> None:
    with pytest.raises(ContradictoryRequest, match="altered twice"):
        alter(ORDERS, Alteration("retention.ms", SET, "1"), Alteration("retention.ms", DELETE, None))


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="larger than"):
        alter(
            ORDERS,
            Alteration("min.compaction.lag.ms", SET, "10"),
            Alteration("max.compaction.lag.ms", SET, "5"),
        )


def test_replacing_drops_what_is_not_named() -> None:
    assert replaced_configs(IMAGE, ORDERS, {"segment.ms": "9"}, BrokerLayers()) == {"segment.ms": "9"}
    with pytest.raises(UnknownTopic):
        replaced_configs(IMAGE, TopicResource("absent"), {}, BrokerLayers())


def test_broker_settings_come_and_go_in_the_image() -> None:
    image = apply(
        IMAGE,
        AlterConfigs(ALL_BROKERS, [Alteration("log.retention.ms", SET, "1")]),
        AlterConfigs(BROKER_1, [Alteration("log.retention.ms", SET, "2")]),
    )
    assert dict(image.default_broker_config) == {"log.retention.ms": "1"}
    assert dict(image.broker_configs[NodeId(1)]) == {"log.retention.ms": "2"}
    image = apply(image, ReplaceConfigs(BROKER_1, {}), ReplaceConfigs(ALL_BROKERS, {}))
    assert not image.default_broker_config
    assert not image.broker_configs
    assert not image.config_revisions


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    change = decide(IMAGE, AlterConfigs(ORDERS, [Alteration("retention.ms", SET, "5")]), Policy())
    assert change.is_empty


def test_a_groups_settings_stay_within_what_the_broker_allows() -> None:
    group = GroupResource("g")
    image = apply(IMAGE, AlterConfigs(group, [Alteration("consumer.session.timeout.ms", SET, "50000")]))
    assert image.group_configs == {"g": {"consumer.session.timeout.ms": "50000"}}
    assert not apply(image, ReplaceConfigs(group, {})).group_configs
    with pytest.raises(InvalidConfig, match="45000 to 60000"):
        altered_configs(
            IMAGE, group, [Alteration("consumer.session.timeout.ms", SET, "1000")], BrokerLayers()
        )
    with pytest.raises(InvalidConfig):
        altered_configs(
            IMAGE, group, [Alteration("consumer.sesion.timeout.ms", SET, "50000")], BrokerLayers()
        )
    short = BrokerLayers(static={"group.consumer.min.session.timeout.ms": "1000"})
    with pytest.raises(InvalidConfig, match="not longer than"):
        altered_configs(IMAGE, group, [Alteration("consumer.session.timeout.ms", SET, "4000")], short)
    with pytest.raises(ContradictoryRequest):
        altered_configs(
            IMAGE,
            GroupResource(""),
            [Alteration("consumer.session.timeout.ms", SET, "50000")],
            BrokerLayers(),
        )


@pytest.mark.parametrize("resource", [ORDERS, ALL_BROKERS, BROKER_1], ids=str)
def test_clearing_a_setting_of_kafka_that_means_nothing_here_is_no_error(resource: ConfigResource) -> None:
    """Kafka's tools clear settings whether there were any or not."""
    for name in ("replication.quota.window.num", "client.quota.callback.class"):
        assert alter(resource, Alteration(name, DELETE, None)) == alter(resource)
        with pytest.raises((InvalidConfig, SettingNotDynamic)):
            alter(resource, Alteration(name, SET, "1"))


@pytest.mark.parametrize("resource", [ALL_BROKERS, BROKER_1], ids=str)
def test_a_setting_of_kafka_without_effect_is_kept_as_it_was_set(resource: ConfigResource) -> None:
    changed = alter(resource, Alteration("log.cleaner.threads", SET, "2"))
    assert changed == {**alter(resource), "log.cleaner.threads": "2"}
    with pytest.raises(InvalidConfig, match="at least 0"):
        alter(resource, Alteration("log.cleaner.threads", SET, "-1"))
    with pytest.raises(InvalidConfig, match="ignoring it would let pass"):
        alter(resource, Alteration("ssl.provider", SET, "mine"))
    with pytest.raises(InvalidConfig, match=r"did you mean log\.cleaner\.threads"):
        alter(resource, Alteration("log.cleaner.thread", SET, "2"))
