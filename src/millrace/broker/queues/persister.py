"""Where share partitions keep their state: with the coordinator on this broker, or over the wire with
another one.

A write that finds its coordinator here needs no request: it is staged with others of the same turn of the
loop. Whatever cannot be done at once stands in a line of its share partition: the coordinator moves, or is
elsewhere. Writes of one line are done in their order, and those that wait for the same answer are joined, so
a later write is never overtaken by an earlier one that is tried again.

Errors are values. Those that pass by themselves are tried again, for as long as
`share.coordinator.write.timeout.ms` says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, TypeAlias, TypeVar

from millrace.broker.queues.remote_state import RemoteState
from millrace.broker.replication.peers import PeerUnreachable
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.runtime import Answer, Outcome, Shard
from millrace.core.background import StartTask
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.metadata.image import NO_LEADER
from millrace.queues.share_partition.model import Delta, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import (
    NO_EPOCH,
    NO_OFFSET,
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateSummary,
    WriteState,
)
from millrace.queues.state.errors import UnknownSharePartition
from millrace.queues.state.records import coordinator_key
from millrace.queues.state.service import ShareState

T = TypeVar("T")

RETRY_S: Final = 0.01
RETRY_S_MAX: Final = 0.25
LINE_MAX: Final = 10_000
"""How many writes of one share partition may wait; it has fewer records in flight."""
JOINED_BATCHES_MAX: Final = 10_000
"""How many runs are written at once, so that joined writes fit into a request and a record."""
_PASSING: Final = (NotCoordinator, CoordinatorLoading, CoordinatorNotAvailable, PeerUnreachable)

Written: TypeAlias = "asyncio.Future[MillraceError | None] | MillraceError | None"
"""What became of a write: None when it is committed, an error, or a future for either."""


class StateWriteTimedOut(MillraceError):
    """Nobody knows in time whether the write is committed; it may still be."""

    def __init__(self, key: ShareKey, timeout_ms: int) -> None:
        super().__init__(f"{coordinator_key(key)}: not committed within {timeout_ms} ms")


class Persister(Protocol):
    """The stored state of share partitions."""

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState | MillraceError:
        """All that is stored. A leader that asks fences those with lower epochs."""

    def write(self, key: ShareKey, *, state_epoch: int, leader_epoch: int, delta: Delta) -> Written:
        """Store a change."""

    async def initialize(self, key: ShareKey, *, state_epoch: int, start_offset: int) -> MillraceError | None:
        """Begin a share partition's state, or begin it anew; -1 leaves the start to the first fetch."""

    async def delete(self, key: ShareKey) -> MillraceError | None:
        """Forget a share partition's state."""

    async def summary(self, key: ShareKey, leader_epoch: int = NO_EPOCH) -> StateSummary | MillraceError:
        """How far the group has come."""


class StatePersister:
    """Keeps the state of share partitions in `__share_group_state`."""

    def __init__(
        self,
        states: ShareState,
        remote: RemoteState | None,
        *,
        node_id: NodeId,
        start_task: StartTask,
    ) -> None:
        """`remote` reaches coordinators on other brokers; None where there is only one broker."""
        self._states = states
        self._remote = remote
        self._node_id = node_id
        self._start_task = start_task
        self._lines: dict[ShareKey, deque[_Waiting]] = {}
        self._uncommitted: deque[tuple[float, _Waiting]] = deque()
        """Writes that their coordinator has, by their deadlines."""
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState | MillraceError:
        return _expect(StoredState, await self._ask(key, ReadState(key, leader_epoch)))

    async def initialize(self, key: ShareKey, *, state_epoch: int, start_offset: int) -> MillraceError | None:
        return _error(await self._ask(key, InitializeState(key, state_epoch, start_offset)))

    async def delete(self, key: ShareKey) -> MillraceError | None:
        error = _error(await self._ask(key, DeleteState(key)))
        # The state of a topic that is deleted goes by itself.
        return None if isinstance(error, UnknownSharePartition) else error

    async def summary(self, key: ShareKey, leader_epoch: int = NO_EPOCH) -> StateSummary | MillraceError:
        del leader_epoch  # Kafka's message has room for it, and its coordinator does not look at it either.
        return _expect(StateSummary, await self._ask(key, ReadSummary(key)))

    def write(self, key: ShareKey, *, state_epoch: int, leader_epoch: int, delta: Delta) -> Written:
        waiting = _Waiting(self, WriteState(key, state_epoch, leader_epoch, delta))
        if key not in self._lines:
            shard = self._states.shard_of(key)
            if shard is not None and not shard.is_over:
                staged = self._states.stage_write(shard, waiting.command, waiting)
                if isinstance(staged, MillraceError):
                    return staged
                if not staged:
                    # A snapshot is due, or too few replicas are in sync.
                    self._decide(shard, waiting)
                return self._committed(waiting)
        return self._stand_in_line(waiting)

    # Writes that their coordinator has.

    def _decide(self, shard: Shard, waiting: _Waiting) -> None:
        outcome = shard.submit(waiting.command)
        if isinstance(outcome, asyncio.Future):
            outcome.add_done_callback(waiting.decided)
        else:
            waiting.stored(_error(outcome))

    def _committed(self, waiting: _Waiting) -> Written:
        if waiting.is_over:
            return waiting.error
        loop = asyncio.get_running_loop()
        future = waiting.awaited(loop)
        if not waiting.is_in_line:
            left = self._uncommitted
            while left and left[0][1].is_over:
                # Commits come in order, so hardly anything stays until its deadline.
                left.popleft()
            left.append((loop.time() + self._timeout_s, waiting))
            if self._timer is None:
                self._timer = loop.call_later(self._timeout_s, self._look_at_deadlines)
        return future

    def _look_at_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        left = self._uncommitted
        while left:
            deadline, waiting = left[0]
            if not waiting.is_over and not waiting.is_in_line:
                if deadline > loop.time():
                    self._timer = loop.call_at(deadline, self._look_at_deadlines)
                    return
                waiting.ended(StateWriteTimedOut(waiting.command.key, self._states.settings.write_timeout_ms))
            left.popleft()

    def try_again(self, waiting: _Waiting) -> None:
        """A write was lost with its coordinator."""
        refused = self._stand_in_line(waiting)
        if isinstance(refused, MillraceError):
            waiting.ended(refused)

    # Lines.

    def _stand_in_line(self, waiting: _Waiting) -> asyncio.Future[MillraceError | None] | MillraceError:
        key = waiting.command.key
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            self._start_task(self._serve(key, line))
        elif len(line) >= LINE_MAX:
            return CoordinatorNotAvailable(f"{coordinator_key(key)}: {LINE_MAX} writes wait already")
        waiting.is_in_line = True
        line.append(waiting)
        return waiting.awaited(asyncio.get_running_loop())

    async def _serve(self, key: ShareKey, line: deque[_Waiting]) -> None:
        try:
            # Others of this turn of the loop may be joined.
            await asyncio.sleep(0)
            while line:
                joined = _take_joined(line)
                error: MillraceError | None = CoordinatorNotAvailable("the write was given up")
                try:
                    error = _error(await self._ask(key, _join(joined)))
                finally:
                    for waiting in joined:
                        waiting.ended(error)
        finally:
            del self._lines[key]
            for waiting in line:
                waiting.ended(CoordinatorNotAvailable("the write was given up"))

    # Any command.

    @property
    def _timeout_s(self) -> float:
        return self._states.settings.write_timeout_ms / 1000

    async def _ask(self, key: ShareKey, command: object) -> Outcome:
        loop = asyncio.get_running_loop()
        end, delay_s = loop.time() + self._timeout_s, RETRY_S
        outcome: Outcome = StateWriteTimedOut(key, self._states.settings.write_timeout_ms)
        try:
            async with asyncio.timeout_at(end):
                while True:
                    outcome = await self._ask_once(key, command)
                    if not isinstance(outcome, _PASSING) or loop.time() + delay_s > end:
                        return outcome
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, RETRY_S_MAX)
        except TimeoutError:
            return outcome

    async def _ask_once(self, key: ShareKey, command: object) -> Outcome:
        topic = self._states.topic
        if not topic.exists:
            try:
                await topic.ensure()
            except MillraceError as error:
                return CoordinatorNotAvailable(f"{topic.name} cannot be created: {error}")
        leader = topic.leader_of(coordinator_key(key))
        if leader == NO_LEADER:
            return CoordinatorNotAvailable(f"nobody leads the partition of {coordinator_key(key)}")
        if leader == self._node_id or self._remote is None:
            outcome = self._states.submit(key, command)
            return await outcome if isinstance(outcome, asyncio.Future) else outcome
        return await self._remote.ask(leader, command)


class _Waiting:
    """A write, and whoever waits for it."""

    __slots__ = ("_future", "_persister", "command", "error", "is_in_line", "is_over")

    def __init__(self, persister: StatePersister, command: WriteState) -> None:
        self.command = command
        self.error: MillraceError | None = None
        self.is_over = False
        self.is_in_line = False
        self._persister = persister
        self._future: asyncio.Future[MillraceError | None] | None = None

    def stored(self, error: MillraceError | None) -> None:
        """Called by the coordinator that has the write."""
        if isinstance(error, _PASSING) and not self.is_over:
            self._persister.try_again(self)
        else:
            self.ended(error)

    def decided(self, answer: Answer) -> None:
        """Called when the coordinator has an outcome."""
        self.stored(_error(answer.result()))

    def ended(self, error: MillraceError | None) -> None:
        if self.is_over:
            return
        self.is_over, self.error = True, error
        if self._future is not None and not self._future.done():
            self._future.set_result(error)

    def awaited(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[MillraceError | None]:
        if self._future is None:
            self._future = loop.create_future()
        return self._future


def _take_joined(line: deque[_Waiting]) -> list[_Waiting]:
    """The first write that waits, with those behind it that can be written together with it."""
    joined = [line.popleft()]
    command = joined[0].command
    count = len(command.delta.batches)
    while line:
        following = line[0].command
        count += len(following.delta.batches)
        if following[1:3] != command[1:3] or count > JOINED_BATCHES_MAX:
            break
        joined.append(line.popleft())
    return joined


def _join(waiting: list[_Waiting]) -> WriteState:
    command = waiting[0].command
    if len(waiting) == 1:
        return command
    start_offset = NO_OFFSET
    batches: list[StateBatch] = []
    for each in waiting:
        delta = each.command.delta
        if delta.start_offset != NO_OFFSET:
            start_offset = delta.start_offset
        batches += delta.batches
    count = waiting[-1].command.delta.delivery_complete_count
    return command._replace(delta=Delta(start_offset, count, tuple(batches)))


def _error(outcome: Outcome) -> MillraceError | None:
    return outcome if isinstance(outcome, MillraceError) else None


def _expect(kind: type[T], outcome: Outcome) -> T | MillraceError:
    assert isinstance(outcome, (kind, MillraceError)), outcome
    return outcome
