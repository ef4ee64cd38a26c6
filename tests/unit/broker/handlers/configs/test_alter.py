"""Changes of settings, resource by resource: each as a whole, in the order of the request."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.configs.alter import alter_configs, incremental_alter_configs
from millrace.broker.network.context import RequestContext
from millrace.metadata.errors import MetadataError
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_configs as full
from millrace.wire.messages import incremental_alter_configs as incremental
from tests.unit.broker.handlers.broker import DIALLED, Broker, anybody

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1


@pytest.fixture
def topics(broker: Broker) -> Broker:
    for name in ("a", "b"):
        broker.create_topic(name, configs={"retention.ms": "1000"})
    return broker


def alter(broker: Broker, *resources: tuple[int, str, str, str | None]) -> list[int]:
    """Set one setting of each resource; the codes."""
    context = RequestContext(1, "test", DIALLED, broker.services, anybody(broker.services))
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[incremental.AlterableConfig(name=key, config_operation=SET, value=value)],
            )
            for kind, name, key, value in resources
        ]
    )
    responses = broker.run(incremental_alter_configs(context, request)).responses
    assert [(each.resource_type, each.resource_name) for each in responses] == [
        resource[:2] for resource in resources
    ]
    assert all((each.error_message is None) == (each.error_code == 0) for each in responses)
    return [each.error_code for each in responses]


def configs(broker: Broker, name: str) -> dict[str, str]:
    return dict(broker.metadata.image.topics[name].configs)


def test_each_resource_has_its_outcome_in_the_order_of_the_request(topics: Broker) -> None:
    codes = alter(
        topics,
        (TOPIC, "missing", "retention.ms", "5"),
        (TOPIC, "a", "retention.ms", "5"),
        (99, "a", "retention.ms", "5"),
        (TOPIC, "b", "retention.ms", "never"),
    )
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
    ]
    assert (configs(topics, "a"), configs(topics, "b")) == ({"retention.ms": "5"}, {"retention.ms": "1000"})


def test_a_bad_value_is_another_error_for_brokers_than_for_topics(topics: Broker) -> None:
    codes = alter(topics, (BROKER, "1", "log.retention.ms", "never"), (TOPIC, "a", "retention.ms", "never"))
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG]


def test_a_resource_that_is_named_twice_is_refused_both_times_and_not_changed(topics: Broker) -> None:
    codes = alter(
        topics,
        (TOPIC, "a", "retention.ms", "5"),
        (TOPIC, "a", "retention.ms", "6"),
        (TOPIC, "b", "retention.ms", "7"),
    )
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert (configs(topics, "a"), configs(topics, "b")) == ({"retention.ms": "1000"}, {"retention.ms": "7"})


def test_a_store_that_is_away_fails_all_that_made_sense(
    topics: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_args: object, **_options: object) -> None:
        raise MetadataError("the store is away")

    monkeypatch.setattr(topics.metadata, "alter_configs", away)
    codes = alter(
        topics, (TOPIC, "a", "retention.ms", "5"), (99, "", "x", "y"), (GROUP, "g", "consumer.x", "5")
    )
    assert codes[0] == codes[2] not in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert codes[1] == ErrorCode.INVALID_REQUEST


def test_alter_configs_of_old_forgets_what_it_does_not_name(topics: Broker) -> None:
    context = RequestContext(2, "test", DIALLED, topics.services, anybody(topics.services))
    resource = full.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=[full.AlterableConfig(name="cleanup.policy", value="compact")],
    )
    response = topics.run(alter_configs(context, full.AlterConfigsRequest(resources=[resource])))
    assert [each.error_code for each in response.responses] == [ErrorCode.NONE]
    assert configs(topics, "a") == {"cleanup.policy": "compact"}


def test_alter_configs_of_old_refuses_a_setting_without_a_value_or_named_twice(topics: Broker) -> None:
    context = RequestContext(2, "test", DIALLED, topics.services, anybody(topics.services))
    without = [full.AlterableConfig(name="retention.ms", value=None)]
    twice = [full.AlterableConfig(name="retention.ms", value=value) for value in ("5", "6")]
    resources = [
        full.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=wanted)
        for name, wanted in (("a", without), ("b", twice))
    ]
    response = topics.run(alter_configs(context, full.AlterConfigsRequest(resources=resources)))
    assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert configs(topics, "a") == configs(topics, "b") == {"retention.ms": "1000"}
