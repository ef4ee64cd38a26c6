"""Which share partitions this broker serves, from when and until when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.queues.live_share import ShareFenced
from millrace.broker.queues.share_partitions import SharePartitions
from millrace.broker.queues.share_sessions import ShareSessions
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.queues.errors import InvalidRecordState
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.changes import DeadLetter, DeadLetterCause
from millrace.queues.share_partition.model import RecordState, ShareKey, StateBatch, StoredState

TOPIC = TopicId(b"t" * 16)
KEY = ShareKey("g", TOPIC, 0)


class Clock:
    def wall_ms(self) -> int:
        return 1_000_000


class Store:
    def __init__(self) -> None:
        self.state: StoredState | MillraceError = StoredState(3, 2, 0, ())
        self.reads: list[tuple[ShareKey, int]] = []

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState | MillraceError:
        self.reads.append((key, leader_epoch))
        await asyncio.sleep(0)
        return self.state

    def write(self, *_arguments: Any, **_fields: Any) -> None:
        return None


class FakePartition:
    def __init__(self) -> None:
        self.log = SimpleNamespace(high_watermark=10, log_start_offset=0)
        self.leader_epoch = 5
        self.is_leader = True
        self.fetch_waiters: dict[Any, None] = {}


class World:
    """Share partitions without a broker; to be made on a loop."""

    def __init__(self) -> None:
        self.store = Store()
        self.settings = ShareSettings()
        self.asked: list[str] = []
        self.priorities: dict[TopicId, int] = {TOPIC: 4}
        self._tasks: list[asyncio.Task[None]] = []
        self.shares = SharePartitions(
            ShareSessions(10),
            self.store,
            clock=Clock(),
            chance=random.Random(1),
            start_task=self._start,
            settings_of=self._settings_of,
            priority_of=self.priorities.get,
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _settings_of(self, group_id: str) -> ShareSettings:
        self.asked.append(group_id)
        return self.settings

    def open(self, partition: FakePartition, key: ShareKey = KEY) -> Any:
        return self.shares.open(key, cast("Any", partition))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def play(scene: Any) -> None:
    async def main() -> None:
        await scene(World())

    asyncio.run(main())


def test_the_state_is_read_once() -> None:
    async def scene(world: World) -> None:
        partition = FakePartition()
        share = world.open(partition)
        assert world.open(partition) is share
        assert not share.waiters
        await world.settle()
        assert world.store.reads == [(KEY, 5)]
        assert share.rules.start_offset == 2
        assert share.state_epoch == 3
        assert world.shares.find(KEY) is share
        assert len(world.shares) == 1

    play(scene)


def test_another_term_of_the_leader_begins_anew() -> None:
    async def scene(world: World) -> None:
        partition = FakePartition()
        share = world.open(partition)
        await world.settle()
        partition.leader_epoch = 6
        again = world.open(partition)
        assert again is not share
        assert isinstance(share.error, ShareFenced)
        await world.settle()
        assert world.store.reads == [(KEY, 5), (KEY, 6)]

    play(scene)


def test_state_that_cannot_be_read_is_told_and_asked_for_again() -> None:
    async def scene(world: World) -> None:
        world.store.state = MillraceError("no")
        partition = FakePartition()
        share = world.open(partition)
        await world.settle()
        assert share.error is world.store.state
        assert world.shares.find(KEY) is None
        world.open(partition)
        await world.settle()
        assert len(world.store.reads) == 2

    play(scene)


def test_acknowledgements_in_an_open_transaction_are_not_read_as_something_else() -> None:
    async def scene(world: World) -> None:
        batch = StateBatch(3, 4, RecordState.TX_PENDING, 1)
        world.store.state = StoredState(3, 2, 0, (batch,))
        share = world.open(FakePartition())
        await world.settle()
        assert isinstance(share.error, InvalidRecordState)
        assert "offsets 3 to 4" in str(share.error)
        assert world.shares.find(KEY) is None

    play(scene)


def test_what_ended_while_it_was_read_does_not_begin() -> None:
    async def scene(world: World) -> None:
        partition = FakePartition()
        share = world.open(partition)
        partition.is_leader = False
        world.shares.leadership_changed(cast("Any", partition))
        await world.settle()
        assert share.rules is None
        assert isinstance(share.error, ShareFenced)

    play(scene)


def test_settings_are_asked_for_once_and_replaced_when_they_change() -> None:
    async def scene(world: World) -> None:
        share = world.open(FakePartition())
        await world.settle()
        assert world.shares.settings_of("g") is world.settings
        assert world.asked == ["g"]
        world.settings = ShareSettings(lock_duration_ms=5)
        world.shares.settings_changed()
        assert share.rules.settings is world.settings

    play(scene)


def test_a_group_that_was_moved_while_it_was_paused_begins_anew() -> None:
    async def scene(world: World) -> None:
        partition = FakePartition()
        share = world.open(partition)
        await world.settle()
        for paused, epoch in ((True, 3), (False, 3), (True, 3), (False, 4)):
            world.settings = ShareSettings(is_paused=paused)
            world.store.state = StoredState(epoch, 2, 0, ())
            world.shares.settings_changed()
            await world.settle()
            assert share.rules.settings.is_paused == paused or epoch == 4
            assert (share.error is None) == (epoch == 3)
        assert isinstance(share.error, ShareFenced)
        assert world.open(partition) is not share

    play(scene)


def test_priorities_of_unknown_topics_are_not_remembered() -> None:
    async def scene(world: World) -> None:
        other = TopicId(b"o" * 16)
        assert world.shares.priority_of((TOPIC, 0)) == 4
        assert world.shares.priority_of((other, 0)) == 0
        world.priorities[other] = 7
        assert world.shares.priority_of((other, 0)) == 7

    play(scene)


def test_topics_that_are_gone_take_their_share_partitions_along() -> None:
    async def scene(world: World) -> None:
        share = world.open(FakePartition())
        await world.settle()
        before = SimpleNamespace(topics_by_id={TOPIC: 1}, group_configs={})
        world.shares.metadata_changed(
            cast("Any", before), cast("Any", SimpleNamespace(topics_by_id={TOPIC: 2}, group_configs={}))
        )
        assert len(world.shares.groups["g"]) == 1
        world.shares.metadata_changed(
            cast("Any", before), cast("Any", SimpleNamespace(topics_by_id={}, group_configs={}))
        )
        assert isinstance(share.error, ShareFenced)
        assert len(world.shares) == 0
        assert not world.shares.groups
        assert not world.shares.stats

    play(scene)


def test_the_last_session_of_a_group_takes_its_share_partitions_along() -> None:
    async def scene(world: World) -> None:
        sessions = world.shares.sessions
        first, second = (sessions.begin("g", name, [(TOPIC, 0)], lambda: None) for name in ("1", "2"))
        share = world.open(FakePartition())
        other = world.open(FakePartition(), KEY._replace(group_id="other"))
        await world.settle()
        world.shares.end_session(first, in_order=True)
        assert len(world.shares.groups["g"]) == 1
        world.shares.end_session(second, in_order=False)
        world.shares.end_session(second, in_order=False)
        assert sessions.lost_count == 1
        assert share.error is not None
        assert other.error is None

    play(scene)


def test_share_partitions_without_sessions_stay_until_their_dead_letters_are_written() -> None:
    async def scene(world: World) -> None:
        given: list[tuple[Any, bool]] = []
        world.shares.write_dead_letters = lambda _share, letters, is_again: given.append((letters, is_again))
        world.store.state = StoredState(3, 2, 0, (StateBatch(2, 3, RecordState.ARCHIVING, 1),))
        session = world.shares.sessions.begin("g", "1", [(TOPIC, 0)], lambda: None)
        share = world.open(FakePartition())
        await world.settle()
        assert given == [((DeadLetter(2, 3, 1, DeadLetterCause.REJECTED),), True)]
        world.shares.end_session(session, in_order=True)
        assert share.error is None
        share.dead_letter_written(2, 2)
        assert world.shares.shares == [share]
        share.dead_letter_written(3, 3)
        assert not world.shares.shares

    play(scene)
