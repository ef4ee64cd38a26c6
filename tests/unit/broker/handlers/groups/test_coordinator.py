"""FindCoordinator as clients of every version see it; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

import pytest

from millrace.metadata.errors import StoreUnavailable
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import NODE_ID, Broker
from tests.unit.broker.handlers.groups.members import join


@pytest.mark.parametrize("version", range(4))
def test_a_coordinator_for_one_key(broker: Broker, version: int) -> None:
    found = broker.ask(FindCoordinatorRequest(key="g"), version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, NODE_ID, "broker.test", 9092)
    if version >= 1:
        assert found.error_message == "NONE"


@pytest.mark.parametrize("version", [4, 5, 6])
def test_coordinators_for_several_keys(broker: Broker, version: int) -> None:
    found = broker.ask(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version).coordinators
    assert [(each.key, each.node_id, each.error_code) for each in found] == [
        ("a", NODE_ID, 0),
        ("b", NODE_ID, 0),
    ]


def test_the_topic_of_the_offsets_comes_with_the_first_question(broker: Broker) -> None:
    assert "__consumer_offsets" not in broker.metadata.image.topics
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    topic = broker.metadata.image.topics["__consumer_offsets"]
    assert topic.internal
    assert broker.log_config("__consumer_offsets").cleanup_compact


@pytest.mark.parametrize(
    "key_type, version, error",
    [
        (2, 5, ErrorCode.INVALID_REQUEST),
        (2, 6, ErrorCode.INVALID_REQUEST),
        (9, 6, ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_kinds_of_coordinators(broker: Broker, key_type: int, version: int, error: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
    (found,) = broker.ask(request, version).coordinators
    assert (found.error_code, found.node_id, found.port) == (error, -1, -1)


def test_before_there_is_a_coordinator_nobody_is_served(broker: Broker) -> None:
    assert join(broker).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_topic_of_transactions_comes_with_the_first_question(broker: Broker) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
    found = broker.ask(request, 4).coordinators
    assert [(each.key, each.node_id, each.error_code) for each in found] == [
        ("a", NODE_ID, 0),
        ("b", NODE_ID, 0),
    ]
    topics = broker.metadata.image.topics
    assert "__consumer_offsets" not in topics
    assert topics["__transaction_state"].configs["min.insync.replicas"] == "1", "there is one broker"


def test_a_topic_that_cannot_be_created_has_no_coordinator(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(topics: object) -> list[object]:
        return [StoreUnavailable("the store is away")]

    monkeypatch.setattr(broker.metadata, "create_topics", refuse)
    (found,) = broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    monkeypatch.undo()
    (found,) = broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (found.error_code, found.node_id) == (0, NODE_ID), "the next question tries again"


def test_the_coordinator_of_a_share_partitions_state(broker: Broker) -> None:
    keys = ["g:AAECAwQFBgcICQoLDA0ODw:0", "g:with:colons:AAECAwQFBgcICQoLDA0ODw:+12"]
    wrong = ["g", ":AAECAwQFBgcICQoLDA0ODw:0", "g:notatopicid:0", "g:AAECAwQFBgcICQoLDA0ODw:x"]
    only_wrong = FindCoordinatorRequest(key_type=2, coordinator_keys=wrong)
    found = broker.ask(only_wrong, 6).coordinators
    assert [each.error_code for each in found] == [ErrorCode.INVALID_REQUEST] * 4
    assert "__share_group_state" not in broker.metadata.image.topics
    found = broker.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[*keys, *wrong]), 6).coordinators
    assert [(each.key, each.node_id) for each in found[:2]] == [(key, NODE_ID) for key in keys]
    assert [each.error_code for each in found] == [0, 0, *[ErrorCode.INVALID_REQUEST] * 4]
    assert broker.metadata.image.topics["__share_group_state"].configs["cleanup.policy"] == "delete"
