"""Share groups whose partitions' state is slow to come, does not come at all, or comes for many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from millrace.broker.queues import share_group_states
from millrace.broker.queues.persister import Persister
from millrace.broker.queues.share_group_states import ShareGroupStates
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.background import Tasks
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.groups.consumer.commands import Beat
from millrace.groups.errors import GroupNotEmpty, GroupNotFound
from millrace.groups.share.commands import ShareHeartbeat
from millrace.groups.share.group import ShareGroup
from millrace.queues.share_partition.model import ShareKey
from millrace.queues.state.commands import StateSummary
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import Broker

T = TypeVar("T")


class State:
    """Stands in for the coordinators of state."""

    def __init__(self) -> None:
        self.begun: dict[ShareKey, tuple[int, int]] = {}
        self.error: MillraceError | None = None
        self.gate: asyncio.Event | None = None
        self.count = 0

    async def initialize(self, key: ShareKey, *, state_epoch: int, start_offset: int) -> MillraceError | None:
        self.count += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is None:
            self.begun[key] = (state_epoch, start_offset)
        return self.error

    async def delete(self, key: ShareKey) -> MillraceError | None:
        if self.error is None:
            self.begun.pop(key, None)
        return self.error

    async def summary(self, key: ShareKey, leader_epoch: int = -1) -> StateSummary | MillraceError:
        state_epoch, start_offset = self.begun.get(key, (0, -1))
        return StateSummary(state_epoch, 0, start_offset, 0)


class Room:
    """A broker with one topic, and share groups with a state of the test's."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.state = State()
        self.tasks = Tasks()
        self.states = ShareGroupStates(
            broker.groups, cast("Persister", self.state), self.tasks.starter("share-group-state")
        )
        self.topic = TopicId(broker.create_topic("t", 2).topic_id)
        broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def done() -> T:
            return await work()

        return self.broker.run(done())

    async def beat(self, member_id: str, epoch: int = 0) -> Any:
        command = ShareHeartbeat("g", member_id, epoch, topic_names=None if epoch else ["t"])
        outcome = self.states.beat(command)
        return await outcome if isinstance(outcome, asyncio.Future) else outcome

    @property
    def group(self) -> ShareGroup:
        group = self.broker.groups.find("g")
        assert isinstance(group, ShareGroup), group
        return group


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    broker = Broker(tmp_path)
    broker.start()
    yield Room(broker)
    broker.stop()


def assigned(beat: Beat) -> list[int]:
    return [number for numbers in (beat.assignment or {}).values() for number in numbers]


def test_the_first_heartbeat_brings_the_partitions(room: Room) -> None:
    beat = room.run(lambda: room.beat("a"))
    assert assigned(beat) == [0, 1]
    assert set(room.state.begun.values()) == {(1, -1)}, "it begins where the first fetch says"
    idle = room.run(lambda: room.beat("a", beat.member_epoch))
    assert (idle.assignment, room.state.count) == (None, 2)


def test_all_who_join_meanwhile_wait_for_the_same_state(room: Room) -> None:
    async def join() -> list[Any]:
        room.state.gate = asyncio.Event()
        joining = [asyncio.ensure_future(room.beat(name)) for name in ("a", "b")]
        for _ in range(20):
            await asyncio.sleep(0)
        room.state.gate.set()
        return await asyncio.gather(*joining)

    beats = room.run(join)
    assert room.state.count == 2, "each partition once"
    assert sorted({number for beat in beats for number in assigned(beat)}) == [0, 1]
    assert all(assigned(beat) for beat in beats)


def test_slow_state_comes_with_a_later_heartbeat(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_group_states, "WAIT_S", 0.01)

    async def join() -> tuple[Any, Any]:
        room.state.gate = asyncio.Event()
        first = await room.beat("a")
        room.state.gate.set()
        while not room.group.state.initialized:
            await asyncio.sleep(0)
        return first, await room.beat("a", first.member_epoch)

    first, second = room.run(join)
    assert (assigned(first), assigned(second)) == ([], [0, 1])


def test_state_that_cannot_be_stored_is_tried_again_with_the_next_heartbeat(room: Room) -> None:
    room.state.error = CoordinatorNotAvailable("nobody is there")
    first = room.run(lambda: room.beat("a"))
    assert assigned(first) == []
    room.state.error = None
    assert assigned(room.run(lambda: room.beat("a", first.member_epoch))) == [0, 1]


def test_altering_begins_anew_with_a_new_epoch(room: Room) -> None:
    place = (room.topic, 1)
    assert room.run(lambda: room.states.alter("g", {place: 7})) == {}
    assert room.state.begun == {ShareKey("g", *place): (1, 7)}
    assert room.run(lambda: room.states.alter("g", {place: 9})) == {}
    assert room.state.begun == {ShareKey("g", *place): (2, 9)}
    assert room.run(lambda: room.states.summaries("g", [place])) == {place: StateSummary(2, 0, 9, 0)}
    room.state.error = CoordinatorNotAvailable("nobody is there")
    assert room.run(lambda: room.states.alter("g", {place: 1})) == {place: room.state.error}
    assert room.group.state.initializing == {}


def test_deletion_that_fails_half_way_can_be_repeated(room: Room) -> None:
    places = {(room.topic, 0): 1, (room.topic, 1): 1}
    room.run(lambda: room.states.alter("g", places))
    room.state.error = CoordinatorNotAvailable("nobody is there")
    assert room.run(lambda: room.states.delete("g", None)) == {room.topic: room.state.error}
    assert room.run(lambda: room.states.delete_group("g")) is room.state.error
    assert room.group.state.deleting == {room.topic: "t"}
    room.state.error = None
    assert not isinstance(room.run(lambda: room.states.delete_group("g")), MillraceError)
    assert (room.state.begun, room.broker.groups.find("g")) == ({}, None)


def test_a_group_that_is_not_there_or_has_members_is_left_alone(room: Room) -> None:
    for ask in (lambda: room.states.delete("g", None), lambda: room.states.delete_group("g")):
        assert isinstance(room.run(ask), GroupNotFound)
    room.run(lambda: room.beat("a"))
    assert isinstance(room.run(lambda: room.states.delete_group("g")), GroupNotEmpty)
    assert isinstance(room.run(lambda: room.states.alter("g", {(room.topic, 0): 1})), GroupNotEmpty)
    assert isinstance(room.run(lambda: room.beat("b", 3)), MillraceError)
