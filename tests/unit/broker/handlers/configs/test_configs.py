"""Settings over the wire: what counts and why, and changes that a running broker takes up at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_configs as full
from millrace.wire.messages import incremental_alter_configs as incremental
from millrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.unit.broker.handlers.broker import Broker

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, DYNAMIC_LOGGER = 1, 2, 3, 4, 5, 6
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    broker: Broker,
    resource_type: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = broker.ask(request, version).results
    assert isinstance(result, DescribeConfigsResult)
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


def values(result: DescribeConfigsResult) -> dict[str, tuple[str | None, int]]:
    return {config.name: (config.value, config.config_source) for config in result.configs}


def entry(result: DescribeConfigsResult, name: str) -> DescribeConfigsResourceResult:
    return next(config for config in result.configs if config.name == name)


def replace(
    broker: Broker,
    resource_type: int,
    name: str,
    *configs: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = full.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[full.AlterableConfig(name=key, value=value) for key, value in configs],
    )
    request = full.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = broker.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result.error_code, result.error_message


def alter(
    broker: Broker,
    resource_type: int,
    name: str,
    *configs: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = incremental.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in configs
        ],
    )
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = broker.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result.error_code, result.error_message


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", {"log.segment.bytes": "1048576"})
    broker.start()
    broker.create_topic("orders", configs={"retention.ms": "1000"})
    yield broker
    broker.stop()


# Describing.


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_settings_come_with_their_sources(broker: Broker, version: int) -> None:
    result = describe(broker, TOPIC, "orders", version=version)
    assert result.error_code == ErrorCode.NONE
    found = values(result)
    assert found["retention.ms"] == ("1000", DYNAMIC_TOPIC)
    assert found["segment.bytes"] == ("1048576", STATIC)
    assert found["cleanup.policy"] == ("delete", DEFAULT)
    assert all(config.synonyms == [] for config in result.configs)
    assert entry(result, "retention.ms").config_type == (5 if version >= 3 else 0)


def test_synonyms_show_every_value_that_could_count(broker: Broker) -> None:
    alter(broker, BROKER, "", ("log.segment.bytes", SET, "2097152"))
    alter(broker, BROKER, "1", ("log.segment.bytes", SET, "3145728"))
    alter(broker, TOPIC, "orders", ("segment.bytes", SET, "4194304"))
    result = describe(broker, TOPIC, "orders", ["segment.bytes"], synonyms=True)
    (config,) = result.configs
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("segment.bytes", "4194304", DYNAMIC_TOPIC),
        ("log.segment.bytes", "3145728", DYNAMIC_BROKER),
        ("log.segment.bytes", "2097152", DYNAMIC_DEFAULT),
        ("log.segment.bytes", "1048576", STATIC),
        ("log.segment.bytes", "1073741824", DEFAULT),
    ]


def test_documentation_is_told_to_those_who_ask(broker: Broker) -> None:
    (config,) = describe(broker, TOPIC, "orders", ["retention.ms"], documentation=True).configs
    assert config.documentation
    (config,) = describe(broker, TOPIC, "orders", ["retention.ms"]).configs
    assert config.documentation is None


def test_some_settings_or_all_of_them(broker: Broker) -> None:
    some = describe(broker, TOPIC, "orders", ["segment.ms", "nope", "retention.ms"])
    assert sorted(values(some)) == ["retention.ms", "segment.ms"]
    assert describe(broker, TOPIC, "orders", []) == describe(broker, TOPIC, "orders", None)


def test_many_topics_are_described_in_one_request_each_by_its_own_settings(broker: Broker) -> None:
    names = [f"topic-{number}" for number in range(50)]
    for number, name in enumerate(names):
        broker.create_topic(name, configs={"retention.ms": "7"} if number % 2 else None)
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
            for name in names
        ]
    )
    results = broker.ask(request, 4).results
    assert [result.resource_name for result in results] == names
    for number, result in enumerate(results):
        expected = ("7", DYNAMIC_TOPIC) if number % 2 else ("604800000", DEFAULT)
        assert values(result)["retention.ms"] == expected


def test_a_brokers_settings_say_which_can_be_changed(broker: Broker) -> None:
    result = describe(broker, BROKER, "1", synonyms=True)
    assert entry(result, "node.id").read_only
    assert not entry(result, "log.segment.bytes").read_only
    assert values(result)["log.segment.bytes"] == ("1048576", STATIC)
    assert values(result)["log.retention.ms"] == (None, DEFAULT)


def test_for_all_brokers_only_what_is_set_is_told(broker: Broker) -> None:
    assert describe(broker, BROKER, "").configs == []
    alter(broker, BROKER, "", ("log.retention.ms", SET, "5000"))
    (config,) = describe(broker, BROKER, "", synonyms=True).configs
    assert (config.name, config.value, config.config_source) == ("log.retention.ms", "5000", DYNAMIC_DEFAULT)
    assert [synonym.source for synonym in config.synonyms] == [DYNAMIC_DEFAULT]


@pytest.mark.parametrize(
    "resource_type, name, code",
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "9", ErrorCode.INVALID_REQUEST),
        (BROKER, "abc", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (LOGGER, "7", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described_is_refused_as_kafka_does(
    broker: Broker, resource_type: int, name: str, code: ErrorCode
) -> None:
    result = describe(broker, resource_type, name)
    assert (result.error_code, bool(result.error_message), result.configs) == (code, True, [])


# Changing.


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_altered_one_by_one_and_take_effect(broker: Broker, version: int) -> None:
    assert alter(broker, TOPIC, "orders", ("segment.bytes", SET, "2048000"), version=version) == (0, None)
    assert values(describe(broker, TOPIC, "orders"))["retention.ms"] == ("1000", DYNAMIC_TOPIC)
    assert broker.log_config("orders").segment_bytes == 2_048_000
    assert broker.log_config("orders").retention_ms == 1000
    assert alter(broker, TOPIC, "orders", ("retention.ms", DELETE, None), version=version) == (0, None)
    assert values(describe(broker, TOPIC, "orders"))["retention.ms"][1] == DEFAULT
    assert broker.log_config("orders").retention_ms == 604_800_000


def test_lists_are_extended_and_shortened(broker: Broker) -> None:
    assert alter(broker, TOPIC, "orders", ("cleanup.policy", APPEND, "compact")) == (0, None)
    assert values(describe(broker, TOPIC, "orders"))["cleanup.policy"][0] == "delete,compact"
    assert alter(broker, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete")) == (0, None)
    config = broker.log_config("orders")
    assert (config.cleanup_compact, config.cleanup_delete) == (True, False)


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_of_old_replaces_everything(broker: Broker, version: int) -> None:
    assert replace(broker, TOPIC, "orders", ("segment.ms", "60000"), version=version) == (0, None)
    found = values(describe(broker, TOPIC, "orders"))
    assert found["segment.ms"] == ("60000", DYNAMIC_TOPIC)
    assert found["retention.ms"][1] == DEFAULT


def test_a_rehearsal_changes_nothing(broker: Broker) -> None:
    assert replace(broker, TOPIC, "orders", ("retention.ms", "7"), validate_only=True) == (0, None)
    assert alter(broker, TOPIC, "orders", ("retention.ms", SET, "7"), validate_only=True) == (0, None)
    code, _ = alter(broker, TOPIC, "orders", ("retention.ms", SET, "x"), validate_only=True)
    assert code == ErrorCode.INVALID_CONFIG
    assert values(describe(broker, TOPIC, "orders"))["retention.ms"] == ("1000", DYNAMIC_TOPIC)


def test_broker_settings_reach_topics_that_set_nothing_themselves(broker: Broker) -> None:
    assert alter(broker, BROKER, "", ("log.retention.ms", SET, "5000")) == (0, None)
    assert alter(broker, BROKER, "1", ("log.segment.bytes", SET, "2000000")) == (0, None)
    assert broker.log_config("orders").retention_ms == 1000
    assert broker.log_config("orders").segment_bytes == 2_000_000
    broker.create_topic("others")
    assert broker.log_config("others").retention_ms == 5000
    assert replace(broker, BROKER, "1") == (0, None)
    assert broker.log_config("others").segment_bytes == 1_048_576


@pytest.mark.parametrize(
    "resource_type, name, config, code",
    [
        (TOPIC, "orders", ("retention.ms", "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", ("zork", "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", ("retention.ms", None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "none", ("retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ("retention.ms", "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ("node.id", "7"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("log.retention.ms", "abc"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9", ("log.retention.ms", "7"), ErrorCode.INVALID_REQUEST),
        (BROKER, "abc", ("log.retention.ms", "7"), ErrorCode.INVALID_REQUEST),
        (99, "1", ("x", "INFO"), ErrorCode.INVALID_REQUEST),
        (0, "", ("x", "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_changes_that_make_no_sense_are_refused_as_kafka_does(
    broker: Broker, resource_type: int, name: str, config: tuple[str, str | None], code: ErrorCode
) -> None:
    key, value = config
    for answer in (
        replace(broker, resource_type, name, config),
        alter(broker, resource_type, name, (key, SET, value)),
    ):
        assert answer[0] == code
        assert answer[1]
    assert values(describe(broker, TOPIC, "orders"))["retention.ms"] == ("1000", DYNAMIC_TOPIC)


def test_contradictions_within_a_resource_are_refused(broker: Broker) -> None:
    code, _ = replace(broker, TOPIC, "orders", ("retention.ms", "1"), ("retention.ms", "2"))
    assert code == ErrorCode.INVALID_REQUEST
    code, _ = alter(broker, TOPIC, "orders", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    assert code == ErrorCode.INVALID_REQUEST
    code, _ = alter(broker, TOPIC, "orders", ("retention.ms", 9, "1"))
    assert code == ErrorCode.INVALID_REQUEST
    code, _ = alter(broker, TOPIC, "orders", ("retention.ms", APPEND, "1"))
    assert code == ErrorCode.INVALID_CONFIG


def test_one_bad_setting_keeps_the_others_of_its_resource_back(broker: Broker) -> None:
    code, _ = alter(broker, TOPIC, "orders", ("segment.ms", SET, "60000"), ("retention.ms", SET, "abc"))
    assert code == ErrorCode.INVALID_CONFIG
    assert values(describe(broker, TOPIC, "orders"))["segment.ms"][1] == DEFAULT


def test_a_resource_named_twice_is_refused_and_others_are_altered(broker: Broker) -> None:
    broker.create_topic("others")
    resources = [
        incremental.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[incremental.AlterableConfig(name="retention.ms", value="5")],
        )
        for name in ("orders", "orders", "others")
    ]
    request = incremental.IncrementalAlterConfigsRequest(resources=resources)
    codes = [result.error_code for result in broker.ask(request, 1).responses]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert broker.log_config("orders").retention_ms == 1000
    assert broker.log_config("others").retention_ms == 5


# Loggers.


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("millrace.test.handlers")
    level = logging.getLogger("millrace").level
    yield logger
    logger.setLevel(logging.NOTSET)
    logging.getLogger("millrace").setLevel(level)


def test_levels_of_loggers_change_at_once(broker: Broker, logger: logging.Logger) -> None:
    assert alter(broker, LOGGER, "1", (logger.name, SET, "TRACE"), validate_only=True) == (0, None)
    assert logger.level == logging.NOTSET
    assert alter(broker, LOGGER, "1", (logger.name, SET, "WARN")) == (0, None)
    assert logger.level == logging.WARNING
    result = describe(broker, LOGGER, "1", [logger.name, "root"])
    assert values(result)[logger.name] == ("WARN", DYNAMIC_LOGGER)
    assert sorted(values(result)) == [logger.name, "root"]
    assert alter(broker, LOGGER, "1", (logger.name, DELETE, None)) == (0, None)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    "config, code",
    [
        (("millrace.zork", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("asyncio", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("millrace.test.handlers", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("millrace.test.handlers", SET, None), ErrorCode.INVALID_REQUEST),
        (("millrace.test.handlers", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
    ],
)
def test_levels_that_make_no_sense_change_no_logger(
    broker: Broker, logger: logging.Logger, config: tuple[str, int, str | None], code: ErrorCode
) -> None:
    answer = alter(broker, LOGGER, "1", ("millrace.test.handlers", SET, "ERROR"), config)
    assert answer[0] == code
    assert logger.level == logging.NOTSET
    for other in ("", "4"):
        assert alter(broker, LOGGER, other, config)[0] == ErrorCode.INVALID_REQUEST


def test_alter_configs_of_old_does_not_know_loggers(broker: Broker) -> None:
    assert replace(broker, LOGGER, "1", ("root", "INFO"))[0] == ErrorCode.INVALID_REQUEST


# Listing.


def test_everything_that_can_have_settings_is_listed(broker: Broker) -> None:
    response = broker.ask(ListConfigResourcesRequest(), 1)
    listed = [(found.resource_type, found.resource_name) for found in response.config_resources]
    assert listed == [(TOPIC, "orders"), (BROKER, "1"), (LOGGER, "1")]
    response = broker.ask(ListConfigResourcesRequest(resource_types=[LOGGER, GROUP, CLIENT_METRICS]), 1)
    assert [found.resource_type for found in response.config_resources] == [LOGGER]


def test_the_first_version_lists_client_metrics_only(broker: Broker) -> None:
    response = broker.ask(ListConfigResourcesRequest(), 0)
    assert (response.error_code, response.config_resources) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("unknown", [0, 99])
def test_unknown_kinds_of_resources_are_refused(broker: Broker, unknown: int) -> None:
    response = broker.ask(ListConfigResourcesRequest(resource_types=[TOPIC, unknown]), 1)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
