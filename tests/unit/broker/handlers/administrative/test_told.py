"""Administrative requests are told with their results, and refused while the audit is closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.handlers.administrative.shapes import ADMINISTRATIVE
from millrace.broker.handlers.administrative.told import told
from millrace.broker.network.dispatch import Api
from millrace.security.acls.binding import Operation
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import AdminAction, Kind
from millrace.security.audit.outbox import PATIENCE_S, Outbox
from millrace.security.principals import Identity, user
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.wire.messages.metadata import MetadataRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.security.audit.samples import Hands, auditor_with

CAROL = Identity(principal=user("carol"))


class Audited:
    def __init__(self, broker: Broker, *, is_closed: bool) -> None:
        self.broker = broker
        self.hands = Hands()
        self.outbox = Outbox("topic", 100)
        policy = AuditPolicy(kinds=frozenset([Kind.ADMIN]), is_closed=is_closed)
        self.auditor = auditor_with([self.outbox], self.hands, policy)
        broker.services.access.auditor = self.auditor

    def create(self, name: str) -> Any:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        )
        (topic,) = self.broker.ask(request, 7, identity=CAROL).topics
        return topic

    def actions(self) -> list[AdminAction]:
        whats = [one.what for one in self.outbox.first(100)]
        return [what for what in whats if isinstance(what, AdminAction)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def test_who_asked_and_what_came_of_it_is_told(broker: Broker) -> None:
    audited = Audited(broker, is_closed=False)
    assert audited.create("orders").error_code == 0
    assert audited.create("orders").error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]), 6, identity=CAROL)
    first, second, third = audited.actions()
    assert first.actor == ("User:carol", "client.test", "test")
    assert (first.request, first.results) == ("CreateTopics", (("Topic", "orders", "NONE", ""),))
    assert second.results == (("Topic", "orders", "TOPIC_ALREADY_EXISTS", ""),)
    assert (third.request, third.results[0].error) == ("DeleteTopics", "NONE")


@pytest.mark.parametrize(
    "version, code", [(6, ErrorCode.TOPIC_DELETION_DISABLED), (1, ErrorCode.INVALID_REQUEST)]
)
def test_nobody_deletes_what_is_told_of_them(broker: Broker, version: int, code: ErrorCode) -> None:
    made = broker.create_topic("__audit")
    Audited(broker, is_closed=False)
    asked = [DeleteTopicState(name="__audit")]
    if version == 6:
        asked.append(DeleteTopicState(topic_id=made.topic_id))
    answer = broker.ask(DeleteTopicsRequest(topic_names=["__audit"], topics=asked), version)
    assert {each.error_code for each in answer.responses} == {code}
    assert "__audit" in broker.metadata.image.topics
    broker.services.access.auditor = None
    answer = broker.ask(DeleteTopicsRequest(topic_names=["__audit"], topics=asked[:1]), version)
    assert [each.error_code for each in answer.responses] == [0]


def test_values_of_settings_are_not_told(broker: Broker) -> None:
    audited = Audited(broker, is_closed=False)
    audited.create("orders")
    config = AlterableConfig(name="retention.ms", config_operation=0, value="12345")
    resource = AlterConfigsResource(resource_type=2, resource_name="orders", configs=[config])
    broker.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    action = audited.actions()[-1]
    assert action.results == (("Topic", "orders", "NONE", "retention.ms"),)
    assert "12345" not in str(action)


def test_what_is_no_administration_is_not_told(broker: Broker) -> None:
    audited = Audited(broker, is_closed=True)
    broker.ask(MetadataRequest(topics=[]), 12)
    assert audited.actions() == []


def test_closed_refuses_before_anything_is_done_and_opens_again(broker: Broker) -> None:
    audited = Audited(broker, is_closed=True)
    audited.create("first")
    audited.hands.now_ms += int(PATIENCE_S * 1000) + 1
    refused = audited.create("second")
    assert refused.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert refused.error_message == "the audit cannot be written (topic), and audit.failure is closed"
    assert "second" not in broker.metadata.image.topics
    assert audited.auditor.refused == 1
    audited.outbox.took(1, audited.hands.loop_time())
    assert audited.create("second").error_code == 0


def test_a_handler_that_fails_is_told_too(broker: Broker) -> None:
    audited = Audited(broker, is_closed=False)

    async def fails(_ctx: object, _request: object) -> None:
        raise RuntimeError("a bug")

    api = next(api for api in APIS if api.key is ApiKey.CREATE_TOPICS)
    broken = told(Api(api.key, api.versions, fails, api.checks))
    context: Any = type(
        "Context",
        (),
        {
            "services": broker.services,
            "decisions": type("D", (), {"identity": CAROL}),
            "endpoint": type("E", (), {"peer_host": "h"}),
            "client_id": None,
        },
    )
    with pytest.raises(RuntimeError):
        broker.run(broken.handle(context, CreateTopicsRequest()))
    (action,) = audited.actions()
    assert action.results == (("Request", "CreateTopics", "UNKNOWN", ""),)


def test_every_api_that_demands_to_alter_create_or_delete_is_told() -> None:
    """A new API that changes something must be in the table, or be named here with a reason."""
    changing = {Operation.ALTER, Operation.ALTER_CONFIGS, Operation.CREATE, Operation.DELETE}
    changing |= {Operation.CREATE_TOKENS}
    found = {api.key for api in APIS if any(check.operation in changing for check in api.checks)}
    # Brokers write markers. Metadata requests and members of streams groups make topics that are missing,
    # which the decision tells.
    makers = {ApiKey.METADATA, ApiKey.STREAMS_GROUP_HEARTBEAT}
    assert found - set(ADMINISTRATIVE) == {ApiKey.WRITE_TXN_MARKERS, *makers}
    assert set(ADMINISTRATIVE) <= {api.key for api in APIS}
