"""A client over its quota is answered at once, told how long to be silent, and not read from for so long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from millrace.broker.network import throttling as module
from millrace.broker.network.dispatch import Api, Dispatcher
from millrace.broker.network.requests import Request
from millrace.broker.network.throttling import Throttling, Whom
from millrace.security.acls.authorizer import Authorizer
from millrace.security.principals import Identity, user
from millrace.security.quotas.entities import QuotaEntity, entity
from millrace.security.quotas.precedence import NO_QUOTAS, QuotaTable
from millrace.security.quotas.rates import Window
from millrace.security.tenants import Tenant, TenantLimits, TenantTable
from millrace.wire.api_keys import ApiKey
from millrace.wire.framing import response_frame
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.network.client import CLIENT_ID, Client, correlation_ids, frame, responses
from tests.unit.broker.network.virtual_time import VirtualTime

IN, OUT, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
ME = entity(client_id=CLIENT_ID.decode())
TOPIC = "topic"


def batch(size: int) -> bytes:
    return bytes(build_batch([Record(0, NOW_MS, b"", bytes(size))]))


def produce_frame(size: int = 1_000, *, acks: int = 1, correlation_id: int = 7, version: int = 12) -> bytes:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch(size))])
        ],
    )
    return frame(ApiKey.PRODUCE, version, request, correlation_id)


def fetch_frame(
    offset: int = 0, *, wait_ms: int = 0, epoch: int = -1, session_id: int = 0, max_bytes: int = 1 << 20
) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=epoch,
        topics=[] if session_id else [FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    return frame(ApiKey.FETCH, 12, request)


def reads(client: Client) -> bool:
    """Whether the connection takes more requests at present."""
    return client.transport.is_reading


def records_bytes(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


class Scene:
    """One client whose time is in the test's hands."""

    def __init__(self, broker: Broker, limits: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.time = VirtualTime()
        self.throttling = broker.services.throttling
        self.throttling.replace(QuotaTable(limits.items()))
        self.services = broker.services
        self.client = self.another()

    def another(self, **server: Any) -> Client:
        return Client(self.services, loop=self.time, ticks=self.time.time, **server)

    async def produce(self, size: int = 1_000, **more: Any) -> Any:
        self.client.receive(produce_frame(size, **more))
        (answer,) = responses(ApiKey.PRODUCE, more.get("version", 12), await self.client.answers())
        return answer

    async def fetch(self, offset: int = 0, **more: Any) -> Any:
        self.client.receive(fetch_frame(offset, **more))
        (answer,) = responses(ApiKey.FETCH, 12, await self.client.answers())
        return answer


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.create_topic(TOPIC)
    return TOPIC


@pytest.mark.parametrize("version", [8, 9, 12])
def test_a_producer_over_its_quota_is_told_and_not_read_from(
    broker: Broker, topic: str, version: int
) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 1_000.0}})
        size = len(produce_frame(9_000, version=version)) - 4
        assert (await scene.produce(9_000, version=version)).throttle_time_ms == 0
        assert reads(scene.client)
        answer = await scene.produce(9_000, version=version)
        # (observed - bound) / bound of the ten seconds that count at the start.
        assert answer.throttle_time_ms == pytest.approx((2 * size - 10_000), abs=2)
        assert answer.responses[0].partition_responses[0].error_code == 0, "what was sent is appended"
        assert not reads(scene.client)
        assert scene.throttling.muted_count == 1
        scene.time.advance(answer.throttle_time_ms / 1000 - 0.01)
        assert not reads(scene.client)
        scene.time.advance(0.02)
        assert reads(scene.client)
        assert scene.throttling.muted_count == 0
        counted = scene.throttling.counts[Whom(IN, "ANONYMOUS", CLIENT_ID.decode())]
        assert (counted.count, counted.sum_ms) == (1, answer.throttle_time_ms)

    broker.run(work())


def test_requests_behind_the_one_that_was_too_much_wait_for_the_end_of_the_silence(
    broker: Broker, topic: str
) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 1_000.0}})
        frames = [produce_frame(20_000, correlation_id=number) for number in range(3)]
        scene.client.receive(b"".join(frames))
        assert correlation_ids(scene.client.written()) == [0]
        scene.client.connection.release_idle_buffer()
        assert scene.client.connection.is_waiting, "who is muted is not idle"
        assert not scene.client.connection.has_unfinished_frame
        scene.time.advance(11)
        assert correlation_ids(scene.client.written()) == [1]
        scene.time.advance(60)
        assert correlation_ids(scene.client.written()) == [2]

    broker.run(work())


def test_recognised_produces_are_charged_like_the_first(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 100_000.0}})
        size = len(produce_frame()) - 4
        allowed = int(1_000_000 / size)
        for _ in range(allowed):
            assert (await scene.produce()).throttle_time_ms == 0
        assert scene.client.connection.recognised.entries_count > 0
        assert (await scene.produce()).throttle_time_ms > 0

    broker.run(work())


def test_a_producer_that_wants_no_answers_is_muted_all_the_same(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 1_000.0, TIME: 0.0001}})
        scene.client.receive(produce_frame(20_000, acks=0))
        assert scene.client.written() == b""
        assert not reads(scene.client)
        assert {whom[0] for whom in scene.throttling.counts} == {IN}
        scene.time.advance(20)
        assert reads(scene.client)

    broker.run(work())


def test_a_consumer_over_its_quota_gets_an_empty_answer_and_the_records_later(
    broker: Broker, topic: str
) -> None:
    broker.append(TOPIC, *range(300))

    async def work() -> None:
        scene = Scene(broker, {ME: {OUT: 1_000.0}})
        got = [await scene.fetch() for _ in range(2)]
        sizes = [
            sum(len(part.records or b"") for t in answer.responses for part in t.partitions) for answer in got
        ]
        assert sizes[0] > 5_000
        assert sizes[1] == 0
        assert got[1].responses == []
        assert got[1].error_code == 0
        assert got[1].throttle_time_ms > 0
        assert not reads(scene.client)
        scene.time.advance(got[1].throttle_time_ms / 1000)
        assert reads(scene.client)
        assert (await scene.fetch()).responses, "what was not sent was not charged"

    broker.run(work())


def test_a_fetch_asks_for_no_more_than_its_quota_lets_through(broker: Broker, topic: str) -> None:
    for _ in range(40):
        broker.append(TOPIC, *range(30))

    async def work() -> None:
        scene = Scene(broker, {ME: {OUT: 100.0}})
        answer = await scene.fetch()
        assert 0 < records_bytes(answer) <= 1_000
        assert answer.throttle_time_ms == 0

    broker.run(work())


def test_a_batch_larger_than_the_quota_of_a_window_still_arrives(broker: Broker, topic: str) -> None:
    broker.append(TOPIC, *range(300))

    async def work() -> None:
        scene = Scene(broker, {ME: {OUT: 10.0}})
        answer = await scene.fetch()
        assert answer.responses
        assert answer.throttle_time_ms > 100_000
        assert not reads(scene.client)

    broker.run(work())


@pytest.mark.parametrize("is_incremental", [True, False])
def test_a_throttled_session_goes_on_or_begins_anew(broker: Broker, topic: str, is_incremental: bool) -> None:
    broker.append(TOPIC, *range(300))

    async def work() -> None:
        scene = Scene(broker, {ME: {OUT: 1_000.0}})
        first = await scene.fetch(epoch=0)
        assert first.session_id
        if is_incremental:
            told = await scene.fetch(epoch=1, session_id=first.session_id)
            assert told.session_id == first.session_id
            expected = {"epoch": 2, "session_id": first.session_id}
        else:
            told = await scene.fetch(epoch=0)
            assert told.session_id == 0
            assert len(scene.services.fetch_sessions) == 1, "that of the first"
            expected = {"epoch": 0}
        assert told.throttle_time_ms
        assert not told.responses
        scene.time.advance(60)
        assert (await scene.fetch(**expected)).responses

    broker.run(work())


def test_a_consumer_that_waits_is_charged_when_it_is_answered(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {OUT: 10.0}})
        offset, emptied = 0, 0
        producer = Client(scene.services, loop=scene.time, ticks=scene.time.time)
        for _ in range(4):
            scene.client.receive(fetch_frame(offset, wait_ms=500))
            assert scene.client.written() == b"", "there is nothing to read"
            producer.receive(produce_frame(50))
            for _ in range(3):
                await asyncio.sleep(0)
            (answer,) = responses(ApiKey.FETCH, 12, scene.client.written())
            if answer.responses:
                offset += 1
            else:
                emptied += 1
                assert answer.throttle_time_ms > 0
                offset += 1
            scene.time.advance(0.5)
            scene.throttling.replace(scene.throttling.table)
        assert emptied >= 2

    broker.run(work())


def test_time_that_requests_take_is_charged_with_the_larger_one_counting(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {TIME: 1.0, IN: 1_000_000.0}})

        def slow(_context: object, _request: object) -> Any:
            scene.time.advance(0.2)
            return HeartbeatResponse()

        dispatcher = Dispatcher([Api(ApiKey.HEARTBEAT, versions=(0, 4), handle=slow, checks=())])
        client = scene.another(dispatcher=dispatcher)
        request = HeartbeatRequest(group_id="group", member_id="member")
        client.receive(frame(ApiKey.HEARTBEAT, 4, request))
        (answer,) = responses(ApiKey.HEARTBEAT, 4, client.written())
        # A fifth of a second is two percent of ten: twice of what is allowed. One second at a time.
        assert answer.throttle_time_ms == 1_000
        assert not reads(client)
        scene.time.advance(1)
        assert reads(client)
        client.receive(frame(ApiKey.HEARTBEAT, 0, request))
        assert not reads(client), "older versions are not told, and muted all the same"
        assert correlation_ids(client.written()) == [7]

    broker.run(work())


def test_the_time_of_common_requests_is_leased_and_all_of_it_is_charged(broker: Broker) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {TIME: 10.0}})
        took_s = 0.01

        def quick(request: Request) -> bool:
            scene.time.advance(took_s)
            body = b"\0\0\0\0\0\0"
            request.complete(response_frame(request.correlation_id, body, flexible=False))
            return True

        api = Api(ApiKey.HEARTBEAT, versions=(0, 3), handle=lambda: None, quick=quick, checks=())
        clients = [scene.another(dispatcher=Dispatcher([api])) for _ in range(4)]
        request = frame(ApiKey.HEARTBEAT, 3, HeartbeatRequest(group_id="group", member_id="member"))
        count = 0
        while all(reads(client) for client in clients):
            clients[count % 4].receive(request)
            count += 1
        # Ten percent of the ten seconds that count at the start; the last request is charged with the next.
        assert count * took_s == pytest.approx(1.0, abs=0.15)
        meter = scene.throttling.meter(TIME, "ANONYMOUS", CLIENT_ID.decode(), 0)
        assert meter is not None
        scene.throttling.replace(QuotaTable([(ME, {TIME: 20.0})]))
        assert meter.sum == pytest.approx(100 * count * took_s), "what was leased is settled"

    broker.run(work())


def test_coroutines_are_charged_for_their_steps_and_not_for_what_they_wait_for(broker: Broker) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {TIME: 1.0}})

        async def handle(_context: object, _request: object) -> Any:
            waits = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(scene.time.advance, 5.0)
            asyncio.get_running_loop().call_soon(waits.set_exception, KeyError())
            with pytest.raises(KeyError):
                await waits
            scene.time.advance(0.15)
            return HeartbeatResponse()

        client = scene.another(
            dispatcher=Dispatcher([Api(ApiKey.HEARTBEAT, versions=(0, 4), handle=handle, checks=())])
        )
        answer = await client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", member_id="m"))
        # Fifteen percent of a second, in a window of fifteen: 5 + 10.
        assert 0 < answer.throttle_time_ms <= 1_000
        assert not reads(client)
        scene.time.advance(1)
        assert reads(client)

    broker.run(work())


def test_answers_whose_field_comes_last_are_told_too(broker: Broker) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {TIME: 1e-9}})
        scene.client.connection.ticks = _Steps()
        request = ApiVersionsRequest(client_software_name="tester", client_software_version="1")
        scene.client.receive(frame(ApiKey.API_VERSIONS, 3, request))
        (answer,) = responses(ApiKey.API_VERSIONS, 3, scene.client.written())
        assert answer.throttle_time_ms == 1_000
        assert answer.api_keys

    broker.run(work())


class _Steps:
    """A clock that goes on by a millisecond with every look."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_a_connection_that_ends_while_it_is_muted_leaves_nothing_behind(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 1_000.0}})
        scene.client.receive(produce_frame(20_000) + produce_frame(10))
        assert scene.throttling.muted_count == 1
        scene.client.connection.connection_lost(None)
        assert scene.throttling.muted_count == 0
        assert scene.time.timers_count == 0
        scene.time.advance(60)
        assert correlation_ids(scene.client.written()) == [7]

    broker.run(work())


def test_other_limits_count_at_once_also_for_who_is_muted(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {ME: {IN: 10.0}})
        assert (await scene.produce(2_000)).throttle_time_ms > 0
        scene.throttling.replace(QuotaTable([(ME, {IN: 1e6})]))
        assert reads(scene.client)
        assert (await scene.produce(2_000)).throttle_time_ms == 0
        scene.throttling.replace(QuotaTable([(ME, {IN: 10.0})]))
        assert (await scene.produce(100)).throttle_time_ms > 0, "what was recorded still counts"
        scene.throttling.replace(NO_QUOTAS)
        assert reads(scene.client)
        assert not scene.throttling.is_active
        assert (await scene.produce(100_000)).throttle_time_ms == 0
        assert scene.client.connection.throttle is None

    broker.run(work())


def test_limits_are_of_the_user_once_it_is_known(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {entity(user="slow"): {IN: 10.0}})
        connection = scene.client.connection
        assert (await scene.produce()).throttle_time_ms == 0
        assert connection.throttle is None
        connection.authenticated_as(Identity(principal=user("slow")))
        assert (await scene.produce()).throttle_time_ms > 0
        connection.authenticated_as(Identity(principal=user("other")))
        assert reads(scene.client)
        assert (await scene.produce()).throttle_time_ms == 0

    broker.run(work())


def test_others_are_not_held_up(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {entity(user="slow"): {IN: 10.0}})
        other = scene.another()
        scene.client.connection.authenticated_as(Identity(principal=user("slow")))
        assert (await scene.produce()).throttle_time_ms > 0
        other.receive(produce_frame())
        (answer,) = responses(ApiKey.PRODUCE, 12, other.written())
        assert answer.throttle_time_ms == 0
        assert reads(other)

    broker.run(work())


def test_of_many_clients_the_last_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LABELS_MAX", 2)
    throttling = Throttling()
    for number in range(5):
        throttling.count(Whom(IN, f"user{number}", ""), 10)
    assert {whom: counted.count for whom, counted in throttling.counts.items()} == {
        (IN, "user0", ""): 1,
        (IN, "user1", ""): 1,
        (IN, "", ""): 3,
    }


def test_windows_can_be_set(broker: Broker, topic: str) -> None:
    async def work() -> None:
        broker.services.throttling = Throttling(Window(3, 1_000))
        scene = Scene(broker, {ME: {IN: 1_000.0}})
        answers = [await scene.produce(800) for _ in range(3)]
        assert [bool(answer.throttle_time_ms) for answer in answers] == [False, False, True]

    broker.run(work())


def test_a_limit_for_the_cluster_is_divided_among_its_brokers(broker: Broker, topic: str) -> None:
    async def work() -> None:
        scene = Scene(broker, {})
        scene.throttling.replace(QuotaTable([(ME, {IN: 4_000.0})]), brokers=4)
        assert (await scene.produce(9_000)).throttle_time_ms == 0
        assert (await scene.produce(2_000)).throttle_time_ms == pytest.approx(1_000, abs=350)

    broker.run(work())


def test_clients_of_a_tenant_share_its_limits_and_its_connections(broker: Broker, topic: str) -> None:
    tenant = Tenant(
        name="t",
        prefix="t.",
        members=("User:a", "User:b"),
        limits=TenantLimits(bytes_in_per_s=1_000, connections=2),
    )

    async def work() -> None:
        scene = Scene(broker, {})
        scene.throttling.replace(QuotaTable([tenant.quotas()]), tenants=TenantTable({"t": tenant}))
        clients = [scene.another() for _ in range(3)]
        for client, name in zip(clients, "aba", strict=True):
            client.connection.authenticated_as(Identity(principal=user(name)))
        told = []
        for client in clients[:2]:
            client.receive(produce_frame(6_000))
            (answer,) = responses(ApiKey.PRODUCE, 12, await client.answers())
            told.append(answer.throttle_time_ms)
        assert told[0] == 0
        assert told[1] > 0, "both together have had too much"
        assert scene.throttling.tenants.counts == {"t": 2}
        before = scene.services.partitions.by_name[TOPIC][0].log.log_end_offset
        clients[2].receive(produce_frame(10))
        assert clients[2].transport.is_aborted
        assert await clients[2].answers() == b""
        assert scene.services.partitions.by_name[TOPIC][0].log.log_end_offset == before
        assert scene.throttling.tenants.refused == {"t": 1}
        scene.throttling.replace(NO_QUOTAS)
        for client in clients:
            client.connection.connection_lost(None)
        assert scene.throttling.tenants.counts == {}

    broker.run(work())


def test_a_super_user_is_nobodys_and_kept_out_by_no_tenants_limit(broker: Broker, topic: str) -> None:
    """Not even by one that has all members of a role or group that a super user has, too."""
    tenant = Tenant(
        name="t", prefix="t.", members=("Group:staff",), limits=TenantLimits(bytes_in_per_s=1, connections=1)
    )

    async def work() -> None:
        scene = Scene(broker, {})
        scene.services.access.replace(Authorizer(super_users=frozenset({"User:root"})))
        scene.throttling.replace(QuotaTable([tenant.quotas()]), tenants=TenantTable({"t": tenant}))
        for _ in range(3):
            client = scene.another()
            client.connection.authenticated_as(Identity(principal=user("root"), groups=("staff",)))
            client.receive(produce_frame(6_000))
            (answer,) = responses(ApiKey.PRODUCE, 12, await client.answers())
            assert answer.throttle_time_ms == 0
        assert scene.throttling.tenants.counts == {}
        client = scene.another()
        client.connection.authenticated_as(Identity(principal=user("clerk"), groups=("staff",)))
        client.receive(produce_frame(6_000))
        await client.answers()
        assert scene.throttling.tenants.counts == {"t": 1}

    broker.run(work())
