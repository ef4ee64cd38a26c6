"""Every API refuses those who may not, and serves those who may: see also the comparison with Apache Kafka in
tests/compat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.network.checks import NONE
from millrace.groups.consumer.group import ConsumerGroup
from millrace.metadata.service import NewTopic
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.acls.filters import AclFilter
from millrace.security.acls.index import AclIndex
from millrace.security.principals import Identity, user
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.wire.records import Record, build_batch
from tests.harness.permissions import (
    AUTHORIZATION_CODES,
    CASES,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Scenario,
    codes_of,
    scenarios,
    told,
)
from tests.unit.broker.handlers.broker import ADMIN, NOW_MS, RESTRICTED, Broker
from tests.unit.broker.network.client import Client, frame, responses
from tests.unit.security.acls.models import acl


class Served:
    """A broker with what the cases are about."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory, {**RESTRICTED, "auto.create.topics.enable": "false"})
        self.broker.start()
        self.topic_id = self.broker.create_topic(TOPIC).topic_id
        self.broker.append(TOPIC, NOW_MS)
        for kind, name in enumerate((GROUP, TRANSACTIONAL_ID)):
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
            self.broker.ask(asked, 4, as_user=ADMIN.name)
        commit = next(case for case in CASES if case.name == "commit")
        assert set(codes_of(self.ask(commit, ADMIN.name))) == {0}
        asked_id = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=10_000)
        assert self.broker.ask(asked_id, 4, as_user=ADMIN.name).error_code == 0
        self._users = 0

    def ask(self, case: Case, name: str) -> Any:
        async def ask() -> Any:
            client = Client(self.broker.services)
            client.connection.authenticated_as(Identity(principal=user(name)))
            return await client.ask(case.key, case.version, case.make(self.topic_id))

        return self.broker.run(ask())

    def play(self, scenario: Scenario) -> Any:
        """The answer to somebody who has these permissions and no other."""
        self._users += 1
        name = f"u{self._users}"
        acls = scenario.acls(f"User:{name}")
        if acls:
            self.broker.allow(*acls)
        return self.ask(scenario.case, name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served"))
    yield served
    served.broker.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_may_is_served_and_who_may_not_is_refused(served: Served, case: Case) -> None:
    answers = {
        scenario.name: (scenario.is_permitted, served.play(scenario))
        for scenario in scenarios()
        # Nobody has an address here.
        if scenario.case is case and scenario.host != "127.0.0.1"
    }
    first = "way 0" if any(case.ways) else "none"
    _, everything = answers[first]
    for name, (is_permitted, answer) in answers.items():
        refused = [code for code in codes_of(answer) if code in AUTHORIZATION_CODES]
        if is_permitted:
            assert not refused, (name, answer)
        elif is_permitted is False and case.is_silent:
            assert told(answer) != told(everything), (name, answer)
        elif is_permitted is False and case.group_first:
            assert refused or told(answer) == told(everything), (name, answer)
        elif is_permitted is False:
            assert refused, (name, answer)


def test_there_is_a_case_for_every_api_that_checks_something() -> None:
    # Who may have a token depends on how they have logged in.
    of_others = {38, 39, 40, 41}
    checking = {int(api.key) for api in APIS if api.checks != NONE}
    assert checking - of_others <= {int(case.key) for case in CASES}


def test_a_topic_is_created_only_for_those_who_may_see_and_create_it(served: Served) -> None:
    broker = served.broker
    broker.services.settings = replace(broker.services.settings, creates_topics=True)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
    broker.allow(
        acl("fresh", Operation.DESCRIBE, "User:sees"), acl("fresh", Operation.CREATE, "User:creates")
    )
    for name in ("stranger", "sees", "creates"):
        (topic,) = broker.ask(request, 9, as_user=name).topics
        assert (topic.error_code, topic.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fresh"), name
    assert "fresh" not in broker.metadata.image.topics
    broker.allow(acl("fresh", Operation.DESCRIBE, "User:creates"))
    (topic,) = broker.ask(request, 9, as_user="creates").topics
    assert topic.error_code == ErrorCode.NONE
    broker.services.settings = replace(broker.services.settings, creates_topics=False)


# Permission that goes while somebody waits, or has asked before.


class Waiting:
    """A topic, and somebody who may read and write it and a group."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory, {**RESTRICTED, "super.users": f"{ADMIN};User:ANONYMOUS"})
        self.broker.start()
        self.topic_id = self.broker.create_topic(TOPIC).topic_id
        self.reading = acl(TOPIC, Operation.READ)
        self.broker.allow(self.reading)

    def fetch(self) -> bytes:
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=600_000,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=[wanted])],
        )
        return frame(ApiKey.FETCH, 17, request)

    def client(self, name: str = "me") -> Client:
        client = Client(self.broker.services)
        client.connection.authenticated_as(Identity(principal=user(name)))
        return client

    async def withdraw(self) -> None:
        assert await self.broker.metadata.security.delete_acls([AclFilter(*self.reading)]) == [[self.reading]]

    async def append(self) -> None:
        found = self.broker.services.partitions.find(TOPIC, 0)
        assert found is not None
        found.append(memoryview(bytearray(build_batch([Record(0, NOW_MS, b"k", b"secret")]))), NOW_MS)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tmp_path)
    yield waiting
    waiting.broker.stop()


def codes_in(data: bytes) -> list[int]:
    return [
        part.error_code
        for response in responses(ApiKey.FETCH, 17, data)
        for topic in response.responses
        for part in topic.partitions
    ]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_fetch_that_waits_ends_with_the_permission(waiting: Waiting, is_repeated: bool) -> None:
    async def work() -> None:
        client = waiting.client()
        client.receive(waiting.fetch())
        assert await client.answers() == b""
        if is_repeated:
            await waiting.append()
            assert b"secret" in await client.answers()
            request = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
            again = FetchRequest(
                max_wait_ms=600_000,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[FetchTopic(topic_id=waiting.topic_id, partitions=[request])],
            )
            client.receive(frame(ApiKey.FETCH, 17, again))
            assert await client.answers() == b""
        await waiting.withdraw()
        assert codes_in(await client.answers()) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        await waiting.append()
        assert await client.answers() == b""

    waiting.broker.run(work())


def test_records_that_were_found_but_have_not_left_stay(waiting: Waiting) -> None:
    async def work() -> None:
        client = waiting.client()
        client.receive(waiting.fetch())
        await waiting.append()
        access = waiting.broker.services.access
        access.replace(Authorizer(acls=AclIndex([])))
        data = await client.answers()
        assert b"secret" not in data
        assert codes_in(data) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]

    waiting.broker.run(work())


def test_others_go_on_waiting(waiting: Waiting) -> None:
    waiting.broker.allow(acl(TOPIC, Operation.READ, "User:you"))

    async def work() -> None:
        client = waiting.client("you")
        client.receive(waiting.fetch())
        await waiting.withdraw()
        assert await client.answers() == b""
        await waiting.append()
        assert b"secret" in await client.answers()

    waiting.broker.run(work())


def test_a_member_that_joins_hears_nothing_of_a_group_that_it_may_not_read_any_more(
    waiting: Waiting,
) -> None:
    broker = waiting.broker
    broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
    broker.groups.settings.initial_rebalance_delay_ms = 20
    may_join = acl(GROUP, Operation.READ, resource_type=ResourceType.GROUP)
    broker.allow(may_join)
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"mine")],
    )

    async def work() -> Any:
        client = waiting.client()
        client.receive(frame(ApiKey.JOIN_GROUP, 3, request))
        assert client.written() == b""
        await broker.metadata.security.delete_acls([AclFilter(*may_join)])
        (response,) = responses(ApiKey.JOIN_GROUP, 3, await client.answers())
        return response

    response = broker.run(work())
    assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (response.member_id, response.members) == ("", [])


def test_what_one_may_see_of_all_topics_is_told_to_nobody_else(waiting: Waiting) -> None:
    request = MetadataRequest(topics=None)

    def seen(name: str) -> list[str]:
        return [topic.name for topic in waiting.broker.ask(request, 9, as_user=name).topics]

    for _ in range(2):
        assert seen("me") == [TOPIC]
        assert seen("you") == []
    waiting.broker.take_back(waiting.reading)
    assert seen("me") == []


def test_a_pattern_matches_what_its_member_may_describe(waiting: Waiting) -> None:
    broker = waiting.broker
    broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
    hidden = broker.create_topic("ordinary").topic_id
    broker.allow(acl(GROUP, Operation.READ, resource_type=ResourceType.GROUP))
    joining = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=10_000,
        subscribed_topic_regex="ord.*",
        topic_partitions=[],
    )

    def assigned() -> set[bytes]:
        response = broker.ask(joining, 1, as_user="me")
        assert response.error_code == 0, response
        return {each.topic_id for each in response.assignment.topic_partitions}

    assert assigned() == {waiting.topic_id}

    async def others_are_made() -> Any:
        await broker.metadata.create_topics([NewTopic(name="ordered", configs={})])
        for _ in range(20):
            await asyncio.sleep(0)
        (machine,) = [each for each in broker.groups.machines() if GROUP in each.groups]
        group = machine.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group.patterns["ord.*"].topics

    assert broker.run(others_are_made()) == {TOPIC}
    broker.allow(acl("ordinary", Operation.DESCRIBE))
    broker.run(asyncio.sleep(0.01))
    assert hidden in assigned()


def test_a_pattern_whose_members_are_not_known_yet_gets_no_more_topics(waiting: Waiting) -> None:
    """As after a change of coordinators: members name their patterns only now and then."""
    broker = waiting.broker
    broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
    broker.allow(
        acl(GROUP, Operation.READ, resource_type=ResourceType.GROUP), acl("ord...", Operation.DESCRIBE)
    )
    joining = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=10_000,
        subscribed_topic_regex="ord.*",
        topic_partitions=[],
    )
    assert broker.ask(joining, 1, as_user="me").error_code == 0
    consumers = broker.groups.consumers
    assert consumers is not None

    def matched() -> frozenset[str]:
        broker.run(asyncio.sleep(0.01))
        (group,) = [each.groups[GROUP] for each in broker.groups.machines() if GROUP in each.groups]
        assert isinstance(group, ConsumerGroup)
        return group.patterns["ord.*"].topics

    broker.create_topic("ordinary")
    assert matched() == {TOPIC, "ordinary"}
    consumers._viewers.clear()
    broker.create_topic("ordered")
    broker.run(broker.metadata.delete_topics(["ordinary"]))
    assert matched() == {TOPIC}
    assert broker.ask(joining, 1, as_user="me").error_code == 0
    assert matched() == {TOPIC, "ordered"}
