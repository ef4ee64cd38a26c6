"""What can have settings: names that mean a broker or a topic, and the list of all of them."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.configs.resources import (
    ResourceType,
    check_topic,
    list_config_resources,
    this_broker,
    unknown_type,
)
from millrace.broker.network.context import RequestContext
from millrace.core.ids import NodeId
from millrace.metadata.errors import ContradictoryRequest, InvalidTopicName, UnknownTopic
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.unit.broker.handlers.broker import DIALLED, Broker, anybody

ME = NodeId(7)


def listed(broker: Broker, version: int, *types: int) -> list[tuple[int, str]]:
    context = RequestContext(version, "test", DIALLED, broker.services, anybody(broker.services))
    response = list_config_resources(context, ListConfigResourcesRequest(resource_types=list(types)))
    assert response.error_code == ErrorCode.NONE
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_a_broker_answers_for_itself_and_where_it_may_for_all() -> None:
    assert this_broker("7", ME, or_all=False) == ME
    assert this_broker("", ME, or_all=True) is None


@pytest.mark.parametrize("name, or_all", [("8", True), ("8", False), ("", False), ("07", True), (" 7", True)])
def test_a_broker_answers_for_no_other_one(name: str, or_all: bool) -> None:
    with pytest.raises(ContradictoryRequest, match="broker 7"):
        this_broker(name, ME, or_all=or_all)


def test_a_topic_is_checked_by_its_name_and_then_by_its_being_there(broker: Broker) -> None:
    broker.create_topic("orders")
    check_topic(broker.metadata.image, "orders")
    with pytest.raises(UnknownTopic):
        check_topic(broker.metadata.image, "other")
    with pytest.raises(InvalidTopicName):
        check_topic(broker.metadata.image, "no/name")


def test_an_unknown_type_is_named_in_its_refusal() -> None:
    assert "99" in str(unknown_type(99))


def test_resources_are_listed_in_the_order_of_the_types_each_once(broker: Broker) -> None:
    broker.create_topic("zebra")
    broker.create_topic("ape")
    wanted = [ResourceType.BROKER, ResourceType.TOPIC, ResourceType.BROKER]
    assert listed(broker, 1, *wanted) == [(4, "1"), (2, "ape"), (2, "zebra")]


def test_the_first_version_was_made_for_client_metrics_which_have_no_settings_here(broker: Broker) -> None:
    broker.create_topic("orders")
    assert listed(broker, 0) == []
    assert (2, "orders") in listed(broker, 1)
