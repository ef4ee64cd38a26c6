"""Who serves a Fetch: a session of consumers, a follower's session, or nobody."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.handlers.fetch.serving import Fetch
from millrace.security.principals import Identity, user
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import ReplicaState
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.fetch.test_repeated_fetches import batch, followed


def test_a_session_that_is_not_known_is_refused_without_an_id(broker: Broker) -> None:
    topic = followed(broker)

    async def ask() -> None:
        consumer = topic.consumer()
        consumer.session_id, consumer.session_epoch = 5, 3
        consumer.ask(0)
        answer = consumer.decoded()
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert answer.session_id == 0, "the client has to begin a new one"
        assert answer.responses == []

    broker.run(ask())


def test_a_session_of_somebody_else_is_not_known(broker: Broker) -> None:
    topic = followed(broker)

    async def ask() -> None:
        owner, thief = topic.consumer(), topic.consumer()
        owner.connection.authenticated_as(Identity(principal=user("alice")))
        owner.session_id, owner.session_epoch = 0, 0
        owner.ask(0, max_wait_ms=0)
        session_id = owner.decoded().session_id
        assert session_id
        for name, code in (("mallory", ErrorCode.FETCH_SESSION_ID_NOT_FOUND), ("alice", ErrorCode.NONE)):
            thief.connection.authenticated_as(Identity(principal=user(name)))
            thief.session_id, thief.session_epoch = session_id, 1
            thief.ask(0, max_wait_ms=0)
            assert thief.decoded().error_code == code

    broker.run(ask())


@pytest.mark.parametrize("has_sessions", [False, True])
def test_a_fetch_in_the_name_of_an_unknown_replica_is_no_replication(
    broker: Broker, has_sessions: bool
) -> None:
    topic = followed(broker)
    if has_sessions:
        sessions = SimpleNamespace(is_replica=lambda _request: False)
        broker.services.replica_sessions = cast("Any", sessions)

    async def ask() -> None:
        topic.partition.append(batch(b"secret"), NOW_MS)
        consumer = topic.consumer()
        consumer.ask(0, replica_state=ReplicaState(replica_id=9, replica_epoch=3))
        (part,) = consumer.decoded().responses[0].partitions
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not part.records

    broker.run(ask())


def test_a_consumer_that_asked_is_known_to_have_asked(broker: Broker) -> None:
    topic = followed(broker)

    async def ask() -> None:
        consumer = topic.consumer()
        assert consumer.connection.fetched_at is None
        consumer.ask(0)
        assert consumer.connection.fetched_at == 0.0

    broker.run(ask())


def test_a_request_that_ends_too_soon_ends_the_connection(broker: Broker) -> None:
    topic = followed(broker)

    async def ask() -> None:
        consumer = topic.consumer()
        refused: list[str] = []
        aborted: list[bool] = []
        cast("Any", consumer.connection._server).count_refused = refused.append
        cast("Any", consumer._transport).abort = lambda: aborted.append(True)
        consumer.receive(struct.pack(">hhihb", ApiKey.FETCH, 17, 7, -1, 0) + b"\0\0")
        assert refused == ["malformed"]
        assert aborted == [True]

    broker.run(ask())


@pytest.mark.parametrize(
    "wishes, is_repeatable",
    [
        ({}, True),
        ({"max_wait_ms": 0}, False),
        ({"session_epoch": 0}, False),
    ],
)
def test_only_who_waits_at_the_end_may_repeat_itself(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, int], is_repeatable: bool
) -> None:
    topic = followed(broker)
    shapes: list[object] = []
    wait = Fetch.begin

    def begin(fetch: Fetch) -> None:
        wait(fetch)
        shapes.append(fetch)

    monkeypatch.setattr(Fetch, "begin", begin)

    async def ask() -> None:
        consumer = topic.consumer()
        consumer.session_epoch = wishes.pop("session_epoch", -1)
        consumer.ask(0, **wishes)

    broker.run(ask())
    (fetch,) = shapes
    assert (cast("Fetch", fetch).shape is not None) == is_repeatable
