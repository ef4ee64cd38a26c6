"""Share groups and the state of their partitions, which is prepared before members get them, and deleted
before the group is.

The groups are with the coordinator of `__consumer_offsets`, their partitions' state with others. The groups'
records say what is under way, so whatever is cut off half way is done again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from millrace.broker.queues.persister import Persister
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.background import StartTask
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.groups.commands import DeleteGroup
from millrace.groups.consumer.commands import JOINING, Beat
from millrace.groups.service import Groups
from millrace.groups.share.commands import (
    AlterShareOffsets,
    BeatBeforeState,
    BeginStateDeletion,
    ShareHeartbeat,
    StateDeleted,
    StateInitialized,
    StateNotInitialized,
    StateToDelete,
    StateToInitialize,
)
from millrace.groups.share.group import ShareGroup
from millrace.queues.share_partition.model import ShareKey
from millrace.queues.state.commands import NO_OFFSET, StateSummary

log = logging.getLogger(__name__)

T = TypeVar("T")

WAIT_S: Final = 1.0
"""How long a heartbeat waits for state that is being prepared. After that its member gets its partitions with
the next one."""
AT_ONCE_MAX: Final = 100
"""How many partitions of a group are prepared, deleted or asked for at the same time."""

Place = tuple[TopicId, int]


class ShareGroupStates:
    """Asks for the state of groups' partitions whatever the groups need."""

    def __init__(self, groups: Groups, persister: Persister, start_task: StartTask) -> None:
        self._groups = groups
        self._persister = persister
        self._start_task = start_task
        self._preparing: dict[str, list[asyncio.Future[bool]]] = {}
        """What is being prepared, by group: whether it could be."""

    # Heartbeats.

    def beat(self, command: ShareHeartbeat) -> Outcome | Answer:
        """The outcome of a heartbeat, or a future for it. A member that joins a new group gets its partitions
        with it."""
        outcome = self._groups.submit(command.group_id, command)
        if not isinstance(outcome, asyncio.Future) and not self._has_to_wait(command, outcome):
            return outcome
        answer: Answer = asyncio.get_running_loop().create_future()
        self._start_task(self._answer(command, outcome, answer))
        return answer

    async def _answer(self, command: ShareHeartbeat, begun: Outcome | Answer, answer: Answer) -> None:
        outcome = begun
        try:
            if isinstance(outcome, asyncio.Future):
                outcome = await outcome
                if not self._has_to_wait(command, outcome):
                    return
            outcome = await self._beat_again(command, _beat_of(outcome))
        finally:
            if not answer.done() and not isinstance(outcome, asyncio.Future):
                answer.set_result(_beat_of(outcome))

    def _has_to_wait(self, command: ShareHeartbeat, outcome: Outcome) -> bool:
        """Whether the member has nothing yet that it will have in a moment: this begins to prepare it."""
        if isinstance(outcome, BeatBeforeState):
            self._prepare(command.group_id, outcome.missing)
            return True
        return (
            command.group_id in self._preparing
            and command.member_epoch == JOINING
            and isinstance(outcome, Beat)
            and not outcome.assignment
        )

    async def _beat_again(self, command: ShareHeartbeat, first: Outcome) -> Outcome:
        assert isinstance(first, Beat), first
        try:
            async with asyncio.timeout(WAIT_S):
                preparing = self._preparing.get(command.group_id, ())
                are_ready = await asyncio.gather(*(asyncio.shield(each) for each in preparing))
        except TimeoutError:
            return first
        if not all(are_ready):
            return first
        again = command._replace(member_epoch=first.member_epoch, topic_names=None, rack=None)
        outcome = await self._ask(command.group_id, again)
        # If more has come meanwhile, the next heartbeat brings it.
        _ = self._has_to_wait(again, outcome)
        outcome = _beat_of(outcome)
        if isinstance(outcome, Beat) and outcome.assignment is None:
            return outcome._replace(assignment=first.assignment)
        return outcome

    def _prepare(self, group_id: str, missing: StateToInitialize) -> None:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._preparing.setdefault(group_id, []).append(done)
        self._start_task(self._prepare_all(group_id, missing, done))

    async def _prepare_all(
        self, group_id: str, missing: StateToInitialize, done: asyncio.Future[bool]
    ) -> None:
        is_ready = False
        try:
            offsets = dict.fromkeys(_places(missing.partitions), NO_OFFSET)
            is_ready = not await self._initialize(group_id, missing.state_epoch, offsets)
        finally:
            waiting = self._preparing[group_id]
            waiting.remove(done)
            if not waiting:
                del self._preparing[group_id]
            done.set_result(is_ready)

    async def _initialize(
        self, group_id: str, state_epoch: int, offsets: Mapping[Place, int]
    ) -> dict[Place, MillraceError]:
        """Begin the state of partitions, tell the group, and return what could not be begun."""

        async def begin(place: Place) -> MillraceError | None:
            return await self._persister.initialize(
                ShareKey(group_id, *place), state_epoch=state_epoch, start_offset=offsets[place]
            )

        outcomes = await _for_each(list(offsets), begin)
        errors = {place: error for place, error in outcomes.items() if error is not None}
        done = _by_topic(place for place in offsets if place not in errors)
        if done:
            await self._ask(group_id, StateInitialized(group_id, done))
        if errors:
            log.warning(
                "group %s: the state of %d partitions cannot be prepared: %s",
                group_id,
                len(errors),
                next(iter(errors.values())),
            )
            await self._ask(group_id, StateNotInitialized(group_id, _by_topic(errors)))
        return errors

    # Offsets.

    async def alter(
        self, group_id: str, offsets: Mapping[Place, int]
    ) -> dict[Place, MillraceError] | MillraceError:
        """Let an empty or new group begin at these offsets. Returns what could not be done, by partition, or
        why nothing could."""
        outcome = await self._ask(group_id, AlterShareOffsets(group_id, _by_topic(offsets)))
        if isinstance(outcome, MillraceError):
            return outcome
        assert isinstance(outcome, StateToInitialize), outcome
        return await self._initialize(group_id, outcome.state_epoch, offsets)

    async def delete(
        self, group_id: str, topic_ids: Sequence[TopicId] | None
    ) -> dict[TopicId, MillraceError | None] | MillraceError:
        """Forget an empty group's state of these topics, or of all. Returns what became of those that had
        some, or why nothing could be done."""
        outcome = await self._ask(group_id, BeginStateDeletion(group_id, topic_ids))
        if isinstance(outcome, MillraceError):
            return outcome
        assert isinstance(outcome, StateToDelete), outcome

        async def forget(place: Place) -> MillraceError | None:
            return await self._persister.delete(ShareKey(group_id, *place))

        found: dict[TopicId, MillraceError | None] = dict.fromkeys(outcome.partitions)
        for (topic, _), error in (await _for_each(_places(outcome.partitions), forget)).items():
            found[topic] = found[topic] or error
        gone = [topic for topic, error in found.items() if error is None]
        if gone:
            stored = await self._ask(group_id, StateDeleted(group_id, gone))
            if isinstance(stored, MillraceError):
                return stored
        return found

    async def delete_group(self, group_id: str) -> Outcome:
        """Delete a group of any kind that has no members: of a share group the state first."""
        if isinstance(self._groups.find(group_id), ShareGroup):
            outcome = await self.delete(group_id, None)
            if isinstance(outcome, MillraceError):
                return outcome
            for error in outcome.values():
                if error is not None:
                    return error
        return await self._ask(group_id, DeleteGroup(group_id))

    async def summaries(
        self, group_id: str, places: Sequence[Place]
    ) -> dict[Place, StateSummary | MillraceError]:
        """How far a group has come in these partitions."""

        async def read(place: Place) -> StateSummary | MillraceError:
            return await self._persister.summary(ShareKey(group_id, *place))

        return await _for_each(places, read)

    async def _ask(self, group_id: str, command: object) -> Outcome:
        outcome = self._groups.submit(group_id, command)
        return await outcome if isinstance(outcome, asyncio.Future) else outcome


def _beat_of(outcome: Outcome) -> Outcome:
    """What the member is answered."""
    return outcome.beat if isinstance(outcome, BeatBeforeState) else outcome


def _places(partitions: Mapping[TopicId, frozenset[int]]) -> list[Place]:
    return [(topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic])]


def _by_topic(places: Iterable[Place]) -> dict[TopicId, frozenset[int]]:
    gathered: dict[TopicId, list[int]] = {}
    for topic, number in places:
        gathered.setdefault(topic, []).append(number)
    return {topic: frozenset(numbers) for topic, numbers in gathered.items()}


async def _for_each(places: Sequence[Place], ask: Callable[[Place], Awaitable[T]]) -> dict[Place, T]:
    """What is answered for each place. So many are asked for at once that a large topic takes little longer
    than a small one, and no more."""
    answers: dict[Place, T] = {}
    for start in range(0, len(places), AT_ONCE_MAX):
        some = places[start : start + AT_ONCE_MAX]
        answers.update(zip(some, await asyncio.gather(*(ask(place) for place in some)), strict=True))
    return answers
