"""Fetch sessions (KIP-227): a client names its partitions once and then only what changes.

Rules without I/O. A session remembers what the client was last told of each partition, so that an
incremental answer holds only partitions with news.

A session belongs to whoever began it, on whichever connection they come. To all others it does not exist: who
guesses its number learns no names from it, and cannot end it.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.wire.fetch_codec import FetchPartition, FetchRequest, ForgottenTopic

INITIAL_EPOCH: Final = 0
"""Asks for a new session."""
FINAL_EPOCH: Final = -1
"""Wants no session, and ends the one that it names."""
EVICTABLE_AFTER_MS: Final = 120_000


class SessionNotFound(MillraceError):
    """The request names a session that has ended, or that another broker knows."""

    def __init__(self, session_id: int) -> None:
        super().__init__(f"fetch session {session_id} is not known here")


class InvalidSessionEpoch(MillraceError):
    """The request is not the next one of its session."""

    def __init__(self, session_id: int, *, epoch: int, expected: int) -> None:
        super().__init__(f"fetch session {session_id} is at epoch {expected}, the request says {epoch}")


class SessionTopicIdsDiffer(MillraceError):
    """A session names all its topics by id, or all by name."""

    def __init__(self, session_id: int) -> None:
        super().__init__(f"fetch session {session_id} began with another way to name topics")


@dataclass(slots=True, eq=False)
class FetchTarget:
    """One partition that a client wants, and what it was last told of it."""

    topic: str
    topic_id: TopicId | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    def update(self, wanted: FetchPartition) -> None:
        self.current_leader_epoch = wanted.current_leader_epoch
        self.fetch_offset = wanted.fetch_offset
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.max_bytes = wanted.max_bytes


TargetKey = tuple[str, TopicId | None, int]


class FetchSession:
    """The partitions of one client, in the order in which they are served."""

    __slots__ = ("created_ms", "epoch", "last_used_ms", "owner", "session_id", "targets", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        targets: dict[TargetKey, FetchTarget],
        *,
        uses_topic_ids: bool,
        now_ms: int,
        owner: Hashable = None,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.targets = targets
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.created_ms = now_ms
        self.last_used_ms = now_ms

    def change(self, request: FetchRequest) -> None:
        """Take over what an incremental request adds, changes and forgets."""
        targets = self.targets
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.topic, topic.topic_id, wanted.partition)
                target = targets.get(key)
                if target is None:
                    targets[key] = _target(topic.topic, topic.topic_id, wanted)
                else:
                    target.update(wanted)
        for forgotten in request.forgotten:
            self._forget(forgotten)

    def used(self, now_ms: int) -> None:
        """Count one request: the next one has to name the next epoch."""
        # From 1 to 2**31 - 1, and then from 1 again.
        self.epoch = self.epoch % 0x7FFF_FFFF + 1
        self.last_used_ms = now_ms

    def move_to_end(self, target: FetchTarget) -> None:
        """Move a partition that was just served to the end, so that it does not starve the others."""
        key = (target.topic, target.topic_id, target.partition)
        if self.targets.pop(key, None) is not None:
            self.targets[key] = target

    def _forget(self, forgotten: ForgottenTopic) -> None:
        for partition in forgotten.partitions:
            self.targets.pop((forgotten.topic, forgotten.topic_id, partition), None)


@dataclass(slots=True)
class FetchPlan:
    """What a request asks for, once its session is taken into account."""

    targets: list[FetchTarget]
    session: FetchSession | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.session_id


class FetchSessions:
    """The sessions of all clients, of which there are at most `slots_max`."""

    def __init__(self, slots_max: int, chance: random.Random) -> None:
        self._slots_max = slots_max
        self._random = chance
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.targets) for session in self._sessions.values())

    def plan(
        self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int, owner: Hashable = None
    ) -> FetchPlan:
        """The partitions to read for a request of `owner`; raises one of this module's errors."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._plan_full(request, uses_topic_ids=uses_topic_ids, now_ms=now_ms, owner=owner)
        session = self._sessions.get(request.session_id)
        if session is None or session.owner != owner:
            raise SessionNotFound(request.session_id)
        if session.epoch != request.session_epoch:
            raise InvalidSessionEpoch(request.session_id, epoch=request.session_epoch, expected=session.epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise SessionTopicIdsDiffer(request.session_id)
        if request.topics or request.forgotten:
            session.change(request)
        session.used(now_ms)
        if not session.targets:
            del self._sessions[session.session_id]
            return FetchPlan([], None, is_incremental=False)
        return FetchPlan(list(session.targets.values()), session, is_incremental=True)

    def is_next(self, session: FetchSession, epoch: int, target: FetchTarget) -> bool:
        """Whether a request of this epoch is the next one of a session that is for this partition alone."""
        targets = session.targets
        return (
            self._sessions.get(session.session_id) is session
            and session.epoch == epoch
            and len(targets) == 1
            and target in targets.values()
        )

    def end(self, session: FetchSession) -> None:
        """Forget a session that its client was not told of."""
        self._sessions.pop(session.session_id, None)

    def _plan_full(
        self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int, owner: Hashable
    ) -> FetchPlan:
        ended = self._sessions.get(request.session_id)
        if ended is not None and ended.owner == owner:
            del self._sessions[request.session_id]
        targets: dict[TargetKey, FetchTarget] = {}
        for topic in request.topics:
            for wanted in topic.partitions:
                targets[topic.topic, topic.topic_id, wanted.partition] = _target(
                    topic.topic, topic.topic_id, wanted
                )
        ordered = list(targets.values())
        if request.session_epoch == FINAL_EPOCH or not targets or not self._make_room(len(targets), now_ms):
            return FetchPlan(ordered, None, is_incremental=False)
        session_id = self._fresh_id()
        session = FetchSession(session_id, targets, uses_topic_ids=uses_topic_ids, now_ms=now_ms, owner=owner)
        self._sessions[session_id] = session
        return FetchPlan(ordered, session, is_incremental=False)

    def _make_room(self, partition_count: int, now_ms: int) -> bool:
        """A place for a session: a free one, or that of a session unused for long or smaller and old."""
        if len(self._sessions) < self._slots_max:
            return True
        if self._slots_max == 0:
            return False
        stalest = min(self._sessions.values(), key=lambda session: session.last_used_ms)
        if now_ms - stalest.last_used_ms > EVICTABLE_AFTER_MS:
            return self._evict(stalest)
        smallest = min(self._sessions.values(), key=lambda session: len(session.targets))
        if len(smallest.targets) < partition_count and now_ms - smallest.created_ms > EVICTABLE_AFTER_MS:
            return self._evict(smallest)
        return False

    def _evict(self, session: FetchSession) -> bool:
        del self._sessions[session.session_id]
        self.evictions += 1
        return True

    def _fresh_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 0x7FFF_FFFF)
            if session_id not in self._sessions:
                return session_id


def _target(topic: str, topic_id: TopicId | None, wanted: FetchPartition) -> FetchTarget:
    return FetchTarget(
        topic,
        topic_id,
        wanted.partition,
        wanted.current_leader_epoch,
        wanted.fetch_offset,
        wanted.last_fetched_epoch,
        wanted.max_bytes,
    )
