"""The description of settings: in one step where few are asked for, and with turns for others where many."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from millrace.broker.handlers.configs.describe import RESOURCES_PER_TURN, describe_configs
from millrace.broker.network.context import RequestContext
from millrace.metadata.config_definitions import BROKER_SETTINGS, ConfigSource
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tests.unit.broker.handlers.broker import DIALLED, Broker, anybody

TOPIC, BROKER = 2, 4


@pytest.fixture
def topics(broker: Broker) -> Broker:
    broker.create_topic("plain")
    broker.create_topic("own", configs={"retention.ms": "5"})
    return broker


def context(broker: Broker) -> RequestContext:
    return RequestContext(4, "test", DIALLED, broker.services, anybody(broker.services))


def request(*resources: tuple[int, str], keys: list[str] | None = None) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ]
    )


def at_once(broker: Broker, wanted: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = describe_configs(context(broker), wanted)
    assert isinstance(response, DescribeConfigsResponse)
    return response


def test_each_topic_is_described_by_its_own_settings_also_when_others_are_alike(topics: Broker) -> None:
    wanted = request((TOPIC, "plain"), (TOPIC, "own"), (TOPIC, "plain"), keys=["retention.ms"])
    found = [
        (config.value, config.config_source)
        for result in at_once(topics, wanted).results
        for config in result.configs
    ]
    default = ("604800000", ConfigSource.DEFAULT_CONFIG)
    assert found == [default, ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG), default]


def test_an_empty_list_of_names_asks_for_all_as_null_does(topics: Broker) -> None:
    (everything,) = at_once(topics, request((TOPIC, "own"))).results
    (as_well,) = at_once(topics, request((TOPIC, "own"), keys=[])).results
    assert everything.configs == as_well.configs
    assert len(everything.configs) > 20


def test_what_cannot_be_described_has_its_error_and_others_are_described(topics: Broker) -> None:
    wanted = request((TOPIC, "missing"), (99, "x"), (BROKER, "5"), (TOPIC, "own"))
    results = at_once(topics, wanted).results
    assert [result.error_code for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert [bool(result.error_message) for result in results] == [True, True, True, False]


def test_others_get_their_turn_while_many_resources_are_described(topics: Broker) -> None:
    count = 2 * RESOURCES_PER_TURN + 1
    wanted = request(*((TOPIC, "own"),) * count, keys=["retention.ms"])

    async def work() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        answer = describe_configs(context(topics), wanted)
        assert inspect.isawaitable(answer)
        response = await answer
        beside.cancel()
        assert len(response.results) == count
        assert all(result.configs[0].value == "5" for result in response.results)
        assert turns == 2

    topics.run(work())


def test_no_secret_of_a_broker_is_ever_shown(tmp_path: Path) -> None:
    own = "listener.name.plaintext.plain.sasl.jaas.config"
    secrets = [name for name, setting in BROKER_SETTINGS.items() if setting.sensitive]
    assert "delegation.token.secret.key" in secrets
    settings = {
        name: f'Module required user_a="hush {place}";' if name.endswith("jaas.config") else f"hush {place}"
        for place, name in enumerate((*secrets, own))
    }
    broker = Broker(tmp_path / "data", {**settings, "connections.max.reauth.ms": "3600000"})
    broker.start()
    try:
        everything = request((BROKER, "1"))
        everything.include_synonyms = everything.include_documentation = True
        (result,) = broker.ask(everything, 4).results
    finally:
        broker.stop()
    shown = {config.name: config for config in result.configs}
    for name in (*secrets, own):
        assert (shown[name].is_sensitive, shown[name].value) == (True, None)
    assert "hush" not in repr(result)
    # Clients read from here how long their sessions last.
    assert shown["connections.max.reauth.ms"].value == "3600000"
