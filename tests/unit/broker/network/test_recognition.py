"""A request that is recognised is answered as the general way answers it, whatever has changed since it was
first seen: two brokers live through the same, one of which recognises nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.handlers import APIS
from millrace.broker.network.dispatch import ApiStats, Dispatcher, Route
from millrace.broker.network.recognition import Recognition
from millrace.coordinator import runtime
from millrace.core.ids import TopicId
from millrace.core.world import World
from millrace.groups.service import OFFSETS_TOPIC
from millrace.metadata.commands import CreatePartitions, TopicResource
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import Acl, Operation, ResourceType
from millrace.security.acls.decisions import Access
from millrace.security.acls.filters import AclFilter
from millrace.security.acls.index import AclIndex
from millrace.security.acls.roles import Role
from millrace.security.principals import Identity, user
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest
from millrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, RESTRICTED, Broker
from tests.unit.broker.handlers.groups.members import member
from tests.unit.broker.network.client import Client, frame
from tests.unit.security.acls.models import acl, deny

TOPIC: Final = "t"
BATCH: Final = bytes(build_batch([Record(0, NOW_MS, b"key", b"v" * 100)]))
METADATA: Final = "how far"
GENERAL: Final = tuple(replace(api, quick=None) for api in APIS)


class NumberedIds:
    """The same ids for every broker."""

    def __init__(self) -> None:
        self._count = 0

    def topic_id(self) -> TopicId:
        self._count += 1
        return TopicId(self._count.to_bytes(16, "big"))


class Side:
    """One of the two brokers, with a connection for each kind of request, of each user."""

    def __init__(self, broker: Broker, *, recognises: bool, users: Sequence[str] = ("",)) -> None:
        self.broker = broker
        self._users = users
        services = broker.services
        if not recognises:
            services.recognition = Recognition(
                services.partitions.world, entries_max=0, access=services.access
            )
        for name in users:
            if name:
                broker.allow(*everything(name))
        self.first_id = broker.create_topic(TOPIC, 2).topic_id
        broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        self.member_id = self.present_member = member(broker, session_timeout_ms=1_000_000)
        self.consumer_epoch = self.beat("first").member_epoch
        dispatcher = Dispatcher(APIS if recognises else GENERAL)

        async def connect() -> dict[str, Client]:
            clients = {}
            for who in users:
                for name in ("produces", "fetches", "commits", "beats"):
                    client = clients[f"{who} {name}"] = Client(services, dispatcher)
                    if who:
                        client.connection.authenticated_as(Identity(principal=user(who)))
            return clients

        self.clients = broker.run(connect())

    @property
    def partition(self) -> Partition | None:
        return self.broker.services.partitions.find(TOPIC, 0)

    def beat(self, member_id: str, epoch: int = 0) -> Any:
        """Join the consumer group `c`, or stay in it."""
        request = ConsumerGroupHeartbeatRequest(group_id="c", member_id=member_id, member_epoch=epoch)
        if not epoch:
            request.rebalance_timeout_ms = 1_000_000
            request.subscribed_topic_names = [TOPIC]
            request.topic_partitions = []
        return self.broker.ask(request, 1)

    def leads(self) -> Partition:
        partition = self.partition
        assert partition is not None
        return partition

    def ask_all(self) -> list[tuple[str, bytes]]:
        """Every kind of request once, each answered before the next is sent; what each connection wrote."""
        return self.broker.run(self._ask_all())

    async def _ask_all(self) -> list[tuple[str, bytes]]:
        answers = []
        for who in self._users:
            for name, data in self._frames():
                # A coordinator whose write has failed is loaded anew.
                while self.broker.groups.runtime.is_loading:
                    await asyncio.sleep(0.001)
                self.clients[f"{who} {name}"].receive(data)
                for written_by, client in self.clients.items():
                    answer = self._anonymous(await client.answers())
                    answers.append((f"{written_by} after {who} {name}", answer))
        return answers

    def _anonymous(self, answer: bytes) -> bytes:
        """Without the paths that errors may name, which is all that the two sides do not have in common."""
        for directory in self.broker.log_directories.all:
            answer = answer.replace(directory.path.encode(), b"here")
        return answer

    def _frames(self) -> Iterator[tuple[str, bytes]]:
        # A consumer at the end of its partition gets what is produced next.
        yield "fetches", self._fetch()
        for name in (TOPIC, OFFSETS_TOPIC):
            for index in (0, 2):
                yield "produces", produce(11, name, None, index)
        yield "produces", produce(13, "", self.first_id, 0)
        yield "produces", produce(13, "", self.first_id, 0, acks=1)
        yield "commits", self._commit(8, "g", self.member_id, 1)
        yield "commits", self._commit(9, "c", "first", self.consumer_epoch)
        yield "commits", self._commit(10, "g", self.member_id, 1, METADATA)
        yield "commits", self._commit(10, "alone", "", -1)
        yield (
            "beats",
            frame(
                ApiKey.HEARTBEAT,
                4,
                HeartbeatRequest(group_id="g", generation_id=1, member_id=self.member_id),
            ),
        )
        staying = ConsumerGroupHeartbeatRequest(
            group_id="c", member_id="first", member_epoch=self.consumer_epoch
        )
        yield "beats", frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, staying)

    def _fetch(self) -> bytes:
        offset = 0 if self.partition is None else self.partition.log.log_end_offset
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=600_000,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=self.first_id, partitions=[wanted])],
        )
        return frame(ApiKey.FETCH, 17, request)

    def _commit(self, version: int, group: str, member_id: str, generation: int, metadata: str = "") -> bytes:
        committed = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=metadata
        )
        topic = OffsetCommitRequestTopic(partitions=[committed])
        if version >= 10:
            topic.topic_id = self.first_id
        else:
            topic.name = TOPIC
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            topics=[topic],
        )
        return frame(ApiKey.OFFSET_COMMIT, version, request)

    def state(self) -> object:
        """All that requests may have changed."""
        services = self.broker.services
        logs = {
            str(partition.topic_partition): (
                partition.log.log_end_offset,
                partition.log.high_watermark,
                len(partition.waiting_produces),
                len(partition.fetch_waiters),
                partition.stats.produces,
                partition.stats.produces_failed,
            )
            for partition in services.partitions
        }
        groups = sorted(
            f"{group_id} {group.type_name} {group.state_name}"
            for machine in self.broker.groups.machines()
            for group_id, group in machine.groups.items()
        )
        offsets = {
            group: {topic: dict(partitions) for topic, partitions in topics.items()}
            for machine in self.broker.groups.machines()
            for group, topics in machine.offsets.by_group.items()
        }
        return logs, groups, offsets


def produce(version: int, name: str, topic_id: TopicId | None, index: int, acks: int = -1) -> bytes:
    topic = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=BATCH)])
    if topic_id is not None:
        topic.topic_id = topic_id
    return frame(ApiKey.PRODUCE, version, ProduceRequest(acks=acks, timeout_ms=600_000, topic_data=[topic]))


# What may change between two requests.

Change = Callable[[Side], None]


def on_loop(change: Callable[[Side], None]) -> Change:
    """For changes of a partition, which may answer requests."""

    def run(side: Side) -> None:
        async def work() -> None:
            if side.partition is not None:
                change(side)

        side.broker.run(work())

    return run


def lead(side: Side) -> None:
    side.leads().lead(NODE_ID, side.leads().leader_epoch + 1)


def follow(side: Side) -> None:
    side.leads().follow(2, side.leads().leader_epoch + 1)


def nobody_leads(side: Side) -> None:
    side.leads().follow(-1, side.leads().leader_epoch + 1)


def lead_followers(*isr: int) -> Callable[[Side], None]:
    def change(side: Side) -> None:
        partition = side.leads()
        leadership = partition.leadership
        if leadership is None:
            leadership = Leadership(
                NODE_ID,
                leader_epoch=partition.leader_epoch + 1,
                epoch_start_offset=partition.log.log_end_offset,
                lag_ms_max=30_000,
                now_ms=0,
            )
        partition_epoch = leadership.partition_epoch + 1
        leadership.update(replicas=(1, 2), isr=isr, partition_epoch=partition_epoch, now_ms=0)
        partition.lead_replicas(leadership)

    return change


def replicas_fetch(side: Side) -> None:
    partition = side.leads()
    end = partition.log.log_end_offset
    partition.replica_fetched(2, broker_epoch=1, offset=end, log_start_offset=0, now_ms=1)


def require(min_insync: int) -> Callable[[Side], None]:
    return lambda side: side.leads().require_replicas(min_insync=min_insync)


def delete_topic(side: Side) -> None:
    side.broker.run(side.broker.metadata.delete_topics([TOPIC]))


def make_topic_again(side: Side) -> None:
    delete_topic(side)
    side.broker.create_topic(TOPIC, 2)


def add_partitions(side: Side) -> None:
    side.broker.run(side.broker.metadata.create_partitions([CreatePartitions(name=TOPIC, count=3)]))


def configure(**values: str) -> Change:
    configs = {name.replace("_", "."): value for name, value in values.items()}

    def change(side: Side) -> None:
        side.broker.run(side.broker.metadata.replace_configs([(TopicResource(TOPIC), configs)]))

    return change


def limit_metadata(size_max: int) -> Change:
    def change(side: Side) -> None:
        side.broker.groups.settings.offset_metadata_max = size_max

    return change


def leave(side: Side) -> None:
    leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=side.present_member)])
    side.broker.ask(leaving, 5)


def leave_and_come_back(side: Side) -> None:
    leave(side)
    side.present_member = member(side.broker, session_timeout_ms=1_000_000)


def another_consumer_joins(side: Side) -> None:
    side.beat("second")


def move_the_log(side: Side) -> None:
    """To the other data directory: what was recognised must not write to the log that was left behind."""
    if side.partition is None:
        return
    directories, name = side.broker.log_directories, side.partition.topic_partition
    original = side.partition.log

    async def move() -> None:
        home = directories.home_of(name)
        directories.move(name, next(each for each in directories.all if each is not home))
        moving = asyncio.get_running_loop().create_task(directories.mover.run())
        while directories.mover.moves:
            await asyncio.sleep(0.001)
        moving.cancel()
        await asyncio.wait([moving])

    side.broker.run(move())
    assert side.leads().log is not original


def turn_off_the_disks(side: Side) -> None:
    async def fence() -> None:
        for directory in side.broker.log_directories.all:
            directory.fence("a test")

    side.broker.run(fence())


CHANGES: Final[dict[str, Change]] = {
    "lead": on_loop(lead),
    "follow": on_loop(follow),
    "nobody leads": on_loop(nobody_leads),
    "lead followers": on_loop(lead_followers(1, 2)),
    "the ISR shrinks": on_loop(lead_followers(1)),
    "followers fetch": on_loop(replicas_fetch),
    "min.insync.replicas grows": on_loop(require(2)),
    "min.insync.replicas shrinks": on_loop(require(1)),
    "the topic goes": delete_topic,
    "another topic of that name": make_topic_again,
    "the log moves to another directory": move_the_log,
    "partitions are added": add_partitions,
    "log append time": configure(message_timestamp_type="LogAppendTime"),
    "compression": configure(compression_type="gzip"),
    "small messages only": configure(max_message_bytes="100"),
    "compaction": configure(cleanup_policy="compact"),
    "flush each": configure(flush_messages="1"),
    "as before": configure(),
    "no metadata with offsets": limit_metadata(3),
    "metadata with offsets": limit_metadata(4_096),
    "the member leaves": leave,
    "the member comes back": leave_and_come_back,
    "another consumer": another_consumer_joins,
}
DISKS: Final = "the disks go"


# What may change of what somebody may do.

ME, YOU = "me", "you"
DENIALS: Final = {
    f"{who} may not {operation.name.lower()} {kind.name.lower()}": deny(
        name, operation, f"User:{who}", resource_type=kind
    )
    for who in (ME, YOU)
    for kind, name, operation in (
        (ResourceType.TOPIC, TOPIC, Operation.READ),
        (ResourceType.TOPIC, TOPIC, Operation.WRITE),
        (ResourceType.TOPIC, TOPIC + "...", Operation.ALL),
        (ResourceType.GROUP, "g", Operation.READ),
        (ResourceType.GROUP, "*", Operation.READ),
    )
}
DENIALS["nobody may from elsewhere"] = deny(TOPIC, Operation.ALL, "User:*", host="10.9.9.9")


def everything(who: str) -> list[Acl]:
    return [
        acl("*", Operation.ALL, f"User:{who}", resource_type=kind)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]


def permit(*acls: Acl) -> Change:
    return lambda side: side.broker.allow(*acls)


def withdraw(*acls: Acl) -> Change:
    """They need not be there."""

    def change(side: Side) -> None:
        filters = [AclFilter(*each) for each in acls]
        side.broker.run(side.broker.metadata.security.delete_acls(filters))

    return change


def role(*members: str) -> Change:
    """Who has the role that may not write."""

    def change(side: Side) -> None:
        security = side.broker.metadata.security
        side.broker.allow(deny(TOPIC, Operation.WRITE, "Role:idle"))
        if "idle" not in security.image.roles.roles:
            side.broker.run(security.create_role(Role("idle", ())))
        present = security.image.roles.roles["idle"].members
        side.broker.run(security.change_members("idle", added=members, removed=present))

    return change


PERMISSIONS: Final[dict[str, Change]] = {
    **{name: permit(denial) for name, denial in DENIALS.items()},
    **{f"no longer: {name}": withdraw(denial) for name, denial in DENIALS.items()},
    **{f"{who} loses everything": withdraw(*everything(who)) for who in (ME, YOU)},
    **{f"{who} gets everything": permit(*everything(who)) for who in (ME, YOU)},
    "one gets a role": role("User:me"),
    "the other has it": role("User:you"),
}


@contextmanager
def two_sides(users: Sequence[str] = ("",)) -> Iterator[tuple[Side, Side]]:
    # Whoever sets the stage is nobody, and may do everything.
    restricted = {**RESTRICTED, "super.users": "User:ANONYMOUS"} if users != ("",) else None
    with TemporaryDirectory() as directory:
        brokers = [
            Broker(
                Path(directory, name, "first"),
                restricted,
                others=[Path(directory, name, "second")],
                ids=NumberedIds(),
            )
            for name in ("a", "b")
        ]
        for broker in brokers:
            broker.start()
        try:
            yield (
                Side(brokers[0], recognises=True, users=users),
                Side(brokers[1], recognises=False, users=users),
            )
        finally:
            for broker in brokers:
                broker.stop()


def compare(changes: list[str], users: Sequence[str] = ("",)) -> None:
    """Both brokers answer all requests alike, before the first change and after each."""
    with two_sides(users) as (quick, general):
        said: list[str] = []
        for change in ["nothing", *changes]:
            said.append(change)
            for side in (quick, general):
                if change == DISKS:
                    turn_off_the_disks(side)
                elif change != "nothing":
                    {**CHANGES, **PERMISSIONS}[change](side)
            for _ in range(2):
                assert quick.ask_all() == general.ask_all(), said
                assert quick.state() == general.state(), said
            if change == "nothing":
                assert quick.broker.services.recognition.entries_count >= 10, "else this shows nothing"
        assert general.broker.services.recognition.entries_count == 0


@pytest.fixture(autouse=True, scope="module")
def _at_once() -> Iterator[None]:
    """Coordinators that failed are loaded again without a pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "RETRY_S", 0.001)
        yield


@pytest.mark.parametrize("change", [*CHANGES, DISKS])
def test_each_change_alone(change: str) -> None:
    compare([change])


@settings(max_examples=10, deadline=None)
@given(changes=st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=7), disks_go=st.booleans())
def test_any_changes_one_after_the_other(changes: list[str], disks_go: bool) -> None:
    compare([*changes, DISKS] if disks_go else changes)


@pytest.mark.parametrize("change", PERMISSIONS)
def test_each_change_of_permissions_alone(change: str) -> None:
    compare([change], (ME, YOU))


@settings(max_examples=10, deadline=None)
@given(
    changes=st.lists(
        st.one_of(st.sampled_from(sorted(PERMISSIONS)), st.sampled_from(sorted({**CHANGES, **PERMISSIONS}))),
        min_size=2,
        max_size=6,
    )
)
def test_any_changes_of_permissions_and_of_the_world(changes: list[str]) -> None:
    compare(changes, (ME, YOU))


# The rule itself.


def route(number: int) -> Route:
    return Route(APIS[number], APIS[number].versions[1], ApiStats())


def test_every_change_of_the_world_forgets_everything() -> None:
    world = World()
    recognition = Recognition(world)
    first, second = route(0), route(1)
    for principal in (None, "somebody"):
        asker = recognition.of(principal)
        asker.remember(first, b"asked", 1)
        asker.remember(second, b"asked", 2)
        assert asker[first] == {b"asked": 1}
        assert asker[second] == {b"asked": 2}
    assert recognition.entries_count == 4
    world.changed()
    assert recognition.entries_count == 0
    assert recognition.of(None)[first] == {}


def test_nobody_finds_what_another_principal_has_asked() -> None:
    recognition = Recognition(World())
    asked = route(0)
    recognition.of("one").remember(asked, b"asked", 1)
    assert recognition.of("one")[asked] == {b"asked": 1}
    assert recognition.of("other")[asked] == {}
    assert recognition.of(None)[asked] == {}


def test_askers_are_forgotten_with_their_last_connection() -> None:
    recognition = Recognition(World())
    first, second = recognition.enter("one"), recognition.enter("one")
    everybody = recognition.enter(None)
    assert first is second
    first.remember(route(0), b"asked", 1)
    everybody.remember(route(0), b"asked", 1)
    recognition.leave(first)
    recognition.leave(everybody)
    assert (recognition.askers_count, recognition.entries_count) == (2, 2)
    recognition.leave(second)
    assert (recognition.askers_count, recognition.entries_count) == (1, 1), "all share what nobody restricts"


def test_what_all_share_takes_nothing_once_there_are_permissions() -> None:
    access = Access()
    recognition = Recognition(World(), access=access)
    everybody, somebody = recognition.enter(None), recognition.enter("one")
    access.replace(Authorizer(acls=AclIndex([])))
    for asker in (everybody, somebody):
        asker.remember(route(0), b"asked", 1)
    assert (everybody.entries_count, somebody.entries_count) == (0, 1)


def test_a_connection_that_shows_who_it_is_leaves_what_it_was_allowed_before(tmp_path: Path) -> None:
    broker = Broker(tmp_path, RESTRICTED)
    broker.start()

    async def connect() -> None:
        services = broker.services
        client, other = Client(services), Client(services)
        before = client.connection.recognised
        assert before is other.connection.recognised, "both are nobody, from the same host"
        before.remember(route(0), client.connection, 1)
        client.connection.authenticated_as(Identity(principal=user("me")))
        assert client.connection.recognised is not before
        assert services.recognition.entries_count == 0
        assert services.recognition.askers_count == 3
        for each in (client, other):
            each.connection.connection_lost(None)
        assert services.recognition.askers_count == 1

    broker.run(connect())
    broker.stop()


def test_there_are_never_more_than_so_many() -> None:
    recognition = Recognition(World(), entries_max=10)
    chance = random.Random(1)
    asked = [route(0), route(1)]
    for number in range(1_000):
        asker = recognition.of(chance.choice([None, "one", "other"]))
        if chance.random() < 0.3:
            asker.forget(chance.randrange(number + 1))
        asker.remember(chance.choice(asked), number, number)
        assert 1 <= recognition.entries_count <= 10
