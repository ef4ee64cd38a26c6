"""Commits by the quick way: the same records, state and answers as by the general way, for every version.

Both ways are tried on the same broker, whose clock stands still: the quick one first, then the general one.
So the second must find nothing to change, and write the same again.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.handlers import APIS
from millrace.broker.handlers.groups.quick_commits import CommitRequest
from millrace.broker.network.connection import Connection
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Dispatcher, Route
from millrace.broker.network.requests import Request
from millrace.groups.machine import GroupMachine
from millrace.groups.records import GroupRecordCodec
from millrace.groups.service import OFFSETS_TOPIC
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import response_frame
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.records import read_records, split_batches
from tests.unit.broker.handlers.broker import DIALLED, NOW_MS, Broker, anybody
from tests.unit.broker.handlers.groups.members import member

VERSIONS = range(2, 11)
DISPATCHER = Dispatcher(APIS)
CORRELATION_ID = 4711
GUARD = b"what the buffer held before"


class Outcome(NamedTuple):
    answer: bytes | None
    records: list[tuple[bytes | None, bytes | None]]
    """That were written."""
    offsets: object
    groups: list[str]


class Wire:
    """The side of a connection that a quick handler sees."""

    def __init__(self, broker: Broker) -> None:
        self.services = broker.services
        self.recognised = broker.services.recognition.of(None)
        self.decisions = anybody(broker.services)
        self.answers: list[bytes] = []
        self._slots: list[Request] = []

    def ticks(self) -> float:
        return 1.5

    def take_place(self, request: Request) -> None:
        request.has_place = True
        self._slots.append(request)

    def request(self, route: Route, buffer: memoryview, body: int, stop: int) -> CommitRequest:
        request = CommitRequest(cast("Connection", self), route)
        request.buffer, request.body, request.stop = buffer, body, stop
        request.correlation_id, request.started = CORRELATION_ID, 1.0
        return request

    def complete(self, request: Request, response: bytes) -> None:
        if request.is_over:
            return
        request.is_over = True
        request.response = response
        while self._slots and self._slots[0].response is not None:
            answer = self._slots.pop(0).response
            assert isinstance(answer, bytes)
            self.answers.append(answer)


class Commits:
    """A broker with the topics `t` and `u`, a member of the classic group `g` and one of the consumer group
    `c`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ids = {name: broker.create_topic(name, 3).topic_id for name in ("t", "u")}
        broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        self.classic_member = member(broker, session_timeout_ms=1_000_000)
        joined = broker.ask(
            ConsumerGroupHeartbeatRequest(
                group_id="c",
                member_id="consumer",
                member_epoch=0,
                rebalance_timeout_ms=1_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
            1,
        )
        assert joined.error_code == ErrorCode.NONE
        self.consumer_epoch = int(joined.member_epoch)

    def quick(self, body: bytes, version: int) -> Outcome | None:
        """None if the request was left to the general way."""
        route = DISPATCHER.find(ApiKey.OFFSET_COMMIT, version)
        assert route is not None
        assert route.quick is not None
        quick = route.quick
        wire = Wire(self.broker)

        async def commit() -> bool:
            # The frame stands in the midst of a buffer, as those of the server do.
            buffer = memoryview(bytearray(GUARD + body + GUARD))
            stop = len(GUARD) + len(body)
            return quick(wire.request(route, buffer, len(GUARD), stop))

        before = self._ends()
        is_done = self.broker.run(commit())
        if not is_done:
            assert self._ends() == before, "what is left to others must leave no trace"
            assert wire.answers == []
            return None
        assert len(wire.answers) == 1
        return Outcome(wire.answers[0], self._written(before), self._offsets(), self._groups())

    def general(self, body: bytes, version: int) -> Outcome:
        route = DISPATCHER.find(ApiKey.OFFSET_COMMIT, version)
        assert route is not None
        before = self._ends()
        request = route.decode(memoryview(body), 0)

        async def handle() -> Any:
            answer = route.handle(
                RequestContext(version, "test", DIALLED, self.broker.services, anybody(self.broker.services)),
                request,
            )
            return await answer if inspect.isawaitable(answer) else answer

        answer = route.encode(self.broker.run(handle()))
        frame = response_frame(CORRELATION_ID, answer, flexible=route.flexible_response)
        return Outcome(frame, self._written(before), self._offsets(), self._groups())

    def reloaded(self) -> object:
        """The offsets as the logs alone tell of them."""
        codec = GroupRecordCodec()
        offsets: dict[str, Any] = {}
        for index in self._ends():
            machine = GroupMachine(self.broker.groups.settings)
            for key, value in self._read(index, 0):
                assert key is not None
                record = codec.decode(key, value)
                assert record is not None
                machine.apply(record)
            offsets |= machine.offsets.by_group
        return offsets

    def _ends(self) -> dict[int, int]:
        partitions = self.broker.services.partitions.by_name[OFFSETS_TOPIC]
        return {index: partition.log.log_end_offset for index, partition in partitions.items()}

    def _written(self, before: dict[int, int]) -> list[tuple[bytes | None, bytes | None]]:
        return [record for index, end in before.items() for record in self._read(index, end)]

    def _read(self, index: int, start: int) -> list[tuple[bytes | None, bytes | None]]:
        log = self.broker.services.partitions.by_name[OFFSETS_TOPIC][index].log
        if start == log.log_end_offset:
            return []
        data = log.read(start, 2**30, log.log_end_offset, True).read()
        return [
            (record.key, record.value)
            for batch in split_batches(memoryview(data))
            for record in read_records(batch)
            if record.offset >= start
        ]

    def _offsets(self) -> object:
        return {
            group: {topic: dict(partitions) for topic, partitions in topics.items()}
            for machine in self.broker.groups.machines()
            for group, topics in machine.offsets.by_group.items()
        }

    def _groups(self) -> list[str]:
        return sorted(
            f"{group_id} {group.type_name} {group.state_name}"
            for machine in self.broker.groups.machines()
            for group_id, group in machine.groups.items()
        )


@contextmanager
def new_commits() -> Iterator[Commits]:
    with TemporaryDirectory() as directory:
        broker = Broker(Path(directory) / "data")
        broker.start()
        try:
            yield Commits(broker)
        finally:
            broker.stop()


@pytest.fixture(scope="module")
def commits() -> Iterator[Commits]:
    with new_commits() as made:
        yield made


def encoded(request: OffsetCommitRequest, version: int) -> bytes:
    return schema.request_encoder(ApiKey.OFFSET_COMMIT, version)(request)


def one(
    commits: Commits, version: int, offset: int = 7, *, topic: str = "t", index: int = 0, **values: Any
) -> bytes:
    """A commit of one partition, outside of any membership."""
    partition = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
    asked = OffsetCommitRequestTopic(partitions=[partition])
    if version >= 10:
        asked.topic_id = commits.ids.get(topic, bytes(range(16)))
    else:
        asked.name = topic
    return encoded(OffsetCommitRequest(**{"group_id": "alone", "topics": [asked], **values}), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_ordinary_commits_go_the_quick_way(commits: Commits, version: int) -> None:
    quick = commits.quick(one(commits, version), version)
    assert quick is not None
    assert len(quick.records) == 1
    assert quick == commits.general(one(commits, version), version)
    as_member: dict[str, Any] = {
        "group_id": "g",
        "member_id": commits.classic_member,
        "generation_id_or_member_epoch": 1,
    }
    assert commits.quick(one(commits, version, **as_member), version) is not None
    as_consumer: dict[str, Any] = {
        "group_id": "c",
        "member_id": "consumer",
        "generation_id_or_member_epoch": commits.consumer_epoch,
    }
    assert commits.quick(one(commits, version, **as_consumer), version) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [
        {"index": 3},
        {"index": -1},
        {"topic": "nowhere"},
        {"group_id": "g"},
        {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "stranger"},
        {"group_id": "c", "generation_id_or_member_epoch": 99, "member_id": "consumer"},
        {"group_id": "missing", "generation_id_or_member_epoch": 1, "member_id": "m"},
        {"topics": []},
    ],
    ids=str,
)
def test_what_is_refused_goes_the_general_way(commits: Commits, version: int, values: dict[str, Any]) -> None:
    assert commits.quick(one(commits, version, **values), version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_no_byte_of_a_request_can_be_missing_or_too_many(commits: Commits, version: int) -> None:
    body = one(commits, version)
    for size in range(len(body)):
        assert commits.quick(body[:size], version) is None
    assert commits.quick(body + b"\0", version) is None
    with pytest.raises(MalformedRequest):
        commits.general(body[:-1], version)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version <= 4])
def test_an_expiry_of_the_clients_own_goes_the_general_way(commits: Commits, version: int) -> None:
    body = one(commits, version, retention_time_ms=1_000)
    assert commits.quick(body, version) is None
    answer = commits.general(body, version).answer
    assert answer is not None
    assert struct.unpack(">h", answer[-2:]) == (ErrorCode.NONE,)


def test_a_topic_that_came_in_the_place_of_another_is_not_taken_for_it(broker: Broker) -> None:
    commits = Commits(broker)
    body = one(commits, 9)
    assert commits.quick(body, 9) is not None
    (outcome,) = broker.run(broker.metadata.delete_topics(["t"]))
    assert not isinstance(outcome, Exception), outcome
    assert commits.quick(body, 9) is None
    new_id = broker.create_topic("t", 3).topic_id
    again = commits.quick(body, 9)
    assert again is not None
    assert again.offsets["alone"]["t"][0].topic_id == new_id  # type: ignore[index]


def test_a_member_that_commits_is_alive(broker: Broker) -> None:
    commits = Commits(broker)
    group = broker.groups.find("g")
    assert group is not None
    body = one(commits, 9, group_id="g", member_id=commits.classic_member, generation_id_or_member_epoch=1)
    assert commits.quick(body, 9) is not None
    assert cast("Any", group).members[commits.classic_member].last_commit_ms == NOW_MS


def test_a_client_that_has_left_is_not_answered(commits: Commits) -> None:
    route = DISPATCHER.find(ApiKey.OFFSET_COMMIT, 9)
    assert route is not None
    wire = Wire(commits.broker)
    taken: list[Request] = []

    def take(request: Request) -> None:
        request.has_place = True
        request.discard()
        taken.append(request)

    wire.take_place = take  # type: ignore[method-assign]
    body = one(commits, 9)

    async def commit() -> None:
        quick = cast("Callable[..., bool]", route.quick)
        assert quick(wire.request(route, memoryview(body), 0, len(body)))

    commits.broker.run(commit())
    assert [slot.response for slot in taken] == [None]


INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["", "m", "ü" * 5, "x" * 126, "x" * 127, "y" * 300])
METADATA = st.sampled_from([None, "", "", "", "some", "ü\0\0", "é" * 70])
PARTITIONS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 2]), INT64, st.integers(-1, 2**31 - 1), METADATA), max_size=3
)
TOPICS = st.lists(st.tuples(st.sampled_from(["t", "t", "u"]), PARTITIONS), max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, SimpleNamespace]:
    version = draw(st.sampled_from(VERSIONS))
    # Refusals have tests of their own; here most are let pass.
    group = draw(st.sampled_from(["g", "c", "alone", "alone", "", "other" * 20, "large" * 60]))
    return version, SimpleNamespace(
        group=group,
        is_member=draw(st.integers(0, 4)) > 0,
        generation=draw(st.sampled_from([-1, -1, -1, 1])),
        member=draw(NAMES),
        instance=draw(st.sampled_from([None, None, "", "i" * 126, "i" * 127])) if version >= 7 else None,
        retention_ms=draw(st.sampled_from([-1, -1, 60_000])) if version <= 4 else -1,
        topics=draw(TOPICS),
    )


def test_both_ways_do_the_same(commits: Commits) -> None:
    quick_count = 0

    @settings(max_examples=200, deadline=None)
    @given(requests())
    def compare(generated: tuple[int, SimpleNamespace]) -> None:
        nonlocal quick_count
        version, asked = generated
        generation, member_id = asked.generation, asked.member
        if asked.is_member and asked.group == "g":
            generation, member_id = 1, commits.classic_member
        elif asked.is_member and asked.group == "c":
            generation, member_id = commits.consumer_epoch, "consumer"
        topics = []
        for name, partitions in asked.topics:
            topic = OffsetCommitRequestTopic(
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch if version >= 6 else -1,
                        committed_metadata=metadata,
                    )
                    for index, offset, epoch, metadata in partitions
                ]
            )
            if version >= 10:
                topic.topic_id = commits.ids.get(name, bytes(range(16)))
            else:
                topic.name = name
            topics.append(topic)
        body = encoded(
            OffsetCommitRequest(
                group_id=asked.group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                retention_time_ms=asked.retention_ms,
                group_instance_id=asked.instance,
                topics=topics,
            ),
            version,
        )
        quick = commits.quick(body, version)
        if quick is None:
            commits.general(body, version)
            return
        quick_count += 1
        assert quick == commits.general(body, version)

    compare()
    assert quick_count >= 20, "else this shows nothing"
    now = commits.general(one(commits, 9), 9)
    assert commits.reloaded() == now.offsets
