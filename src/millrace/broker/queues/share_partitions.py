"""All share partitions that this broker serves, and the sessions of those who fetch from them.

A share partition begins with the first fetch that asks for it: its state is read, and from then on it is in
memory. It ends when this broker leads its partition no more, when its state was written or initialized by
somebody else, when its topic is gone, or when the last session of its group on this broker is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.broker.queues.live_share import LiveShare, ShareFenced, ShareStats, StateStore, as_told
from millrace.coordinator.decision import CancelTimer, SetTimer
from millrace.coordinator.timers import Timers
from millrace.core.durations import iso_duration_ms
from millrace.core.errors import MillraceError
from millrace.queues.errors import InvalidRecordState
from millrace.queues.share_partition.changes import Stop
from millrace.queues.share_partition.model import RecordState, ShareKey, StoredState
from millrace.queues.share_partition.partition import SharePartition

if TYPE_CHECKING:
    import random

    from millrace.broker.queues.share_sessions import ShareSession, ShareSessions
    from millrace.core.background import StartTask
    from millrace.core.clock import Clock
    from millrace.core.ids import TopicId
    from millrace.log.partition.partition_log import PartitionLog
    from millrace.metadata.image import Image
    from millrace.queues.settings import ShareSettings
    from millrace.queues.share_partition.changes import DeadLetter
    from millrace.replica.partition import Partition

log = logging.getLogger(__name__)

GiveUp = Callable[[LiveShare, Sequence["DeadLetter"], bool], None]


class SharePartitions:
    """The share partitions of this broker by their keys, with one timer for all their locks."""

    def __init__(
        self,
        sessions: ShareSessions,
        store: StateStore,
        *,
        clock: Clock,
        chance: random.Random,
        start_task: StartTask,
        settings_of: Callable[[str], ShareSettings],
        priority_of: Callable[[TopicId], int | None],
    ) -> None:
        """`settings_of` says what counts for a group at the moment, `priority_of` how urgent a topic is
        (None if there is none); both are remembered until something changes."""
        self.sessions = sessions
        self.store = store
        self.stats: dict[str, ShareStats] = {}
        """By group; they stay while the group has share partitions here."""
        self.write_dead_letters: GiveUp | None = None
        """Set by whoever writes them. Without, they wait."""
        self.stop_counts: dict[Stop, int] = dict.fromkeys(Stop, 0)
        """How often delivery stopped for which reason."""
        self._clock = clock
        self._chance = chance
        self._start_task = start_task
        self._settings_of = settings_of
        self._priority_of = priority_of
        self._settings: dict[str, ShareSettings] = {}
        self._priorities: dict[TopicId, int] = {}
        self._shares: dict[ShareKey, LiveShare] = {}
        self._by_group: dict[str, dict[ShareKey, LiveShare]] = {}
        self._by_partition: dict[Partition, dict[ShareKey, LiveShare]] = {}
        self._timers: Timers | None = None

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def shares(self) -> Sequence[LiveShare]:
        """All of them, for those who look at them from outside."""
        return list(self._shares.values())

    @property
    def groups(self) -> Mapping[str, Mapping[ShareKey, LiveShare]]:
        return self._by_group

    # Finding.

    def find(self, key: ShareKey) -> LiveShare | None:
        return self._shares.get(key)

    def open(self, key: ShareKey, partition: Partition) -> LiveShare:
        """The share partition of a partition that this broker leads. It may still have to read its state
        (`LiveShare.rules` is None)."""
        share = self._shares.get(key)
        if share is not None:
            if share.partition is partition and share.leader_epoch == partition.leader_epoch:
                return share
            self.fenced(share, ShareFenced(key, "its partition has a new leader"))
        stats = self.stats.setdefault(key.group_id, ShareStats())
        share = self._shares[key] = LiveShare(key, partition, self, stats)
        self._by_group.setdefault(key.group_id, {})[key] = share
        self._by_partition.setdefault(partition, {})[key] = share
        self._start_task(self._load(share))
        return share

    def settings_of(self, group_id: str) -> ShareSettings:
        settings = self._settings.get(group_id)
        if settings is None:
            settings = self._settings[group_id] = self._settings_of(group_id)
        return settings

    def priority_of(self, target: tuple[TopicId, int]) -> int:
        """How urgent the records of a session's partition are."""
        topic_id = target[0]
        priority = self._priorities.get(topic_id)
        if priority is None:
            priority = self._priority_of(topic_id)
            if priority is None:
                return 0
            self._priorities[topic_id] = priority
        return priority

    # Beginning and end.

    async def _load(self, share: LiveShare) -> None:
        key = share.key
        try:
            stored = await self.store.read(key, share.leader_epoch)
            if isinstance(stored, StoredState) and stored.start_offset < 0:
                start_offset = await self._first_offset(share.partition.log, key.group_id)
                stored = stored._replace(start_offset=start_offset)
        except MillraceError as error:
            stored = error
        if share.error is not None:
            # It has ended meanwhile.
            return
        if isinstance(stored, MillraceError):
            log.info("the state of a share partition cannot be read: %s", stored)
            self.fenced(share, as_told(key, stored))
            return
        for batch in stored.batches:
            if batch.state is RecordState.TX_PENDING:
                refusal = InvalidRecordState(
                    f"share partition {key.partition} of group {key.group_id}: offsets "
                    f"{batch.first_offset} to {batch.last_offset} are acknowledged in an open transaction, "
                    "which this version cannot end; reset the group's offsets to go on without it"
                )
                log.error("a share partition is not served: %s", refusal)
                self.fenced(share, refusal)
                return
        rules = SharePartition(self.settings_of(key.group_id), stored, self._chance.random)
        share.begin(rules, stored.state_epoch)

    async def _first_offset(self, partition_log: PartitionLog, group_id: str) -> int:
        """Where a group begins that nobody has told where: as its settings say at its first fetch."""
        reset = self.settings_of(group_id).auto_offset_reset
        if reset == "earliest":
            return partition_log.log_start_offset
        if reset != "latest":
            since_ms = self._clock.wall_ms() - iso_duration_ms(reset.partition(":")[2])
            found = await partition_log.find_offset_by_timestamp(since_ms)
            if found is not None:
                return min(found.offset, partition_log.high_watermark)
        return partition_log.high_watermark

    def fenced(self, share: LiveShare, error: MillraceError) -> None:
        """Serve it no more; the next fetch begins anew."""
        key = share.key
        if self._shares.get(key) is share:
            del self._shares[key]
            of_partition = self._by_partition[share.partition]
            del of_partition[key]
            if not of_partition:
                del self._by_partition[share.partition]
            of_group = self._by_group[key.group_id]
            del of_group[key]
            if not of_group:
                del self._by_group[key.group_id]
                self.stats.pop(key.group_id, None)
                self._settings.pop(key.group_id, None)
        if share.error is None:
            share.end(error)
        if self._timers is not None:
            self._timers.change((CancelTimer(share.key),))

    def leadership_changed(self, partition: Partition) -> None:
        """Hear that a partition came, went or may have a new leader."""
        for share in list(self._by_partition.get(partition, {}).values()):
            share.changed()

    def metadata_changed(self, old: Image, new: Image) -> None:
        """Hear of topics that are gone, and of other settings."""
        if old.topics_by_id is not new.topics_by_id:
            self._priorities.clear()
            for share in self.shares:
                if share.key.topic_id not in new.topics_by_id:
                    self.fenced(share, ShareFenced(share.key, "its topic is gone"))
        if old.group_configs is not new.group_configs:
            self.settings_changed()

    def settings_changed(self) -> None:
        """Other settings may count for any group."""
        self._settings.clear()
        for share in self.shares:
            if share.rules is not None:
                settings = self.settings_of(share.key.group_id)
                if share.rules.settings.is_paused and not settings.is_paused:
                    self._start_task(self._resume(share))
                elif share.rules.settings != settings:
                    share.rules.settings = settings
                    share.settings_changed()

    async def _resume(self, share: LiveShare) -> None:
        """Deliver again, unless the group was moved while it was paused: then its state is read anew."""
        stored = await self.store.read(share.key, share.leader_epoch)
        if share.error is not None or share.rules is None:
            return
        if isinstance(stored, StoredState) and stored.state_epoch != share.state_epoch:
            self.fenced(share, ShareFenced(share.key, "its group was moved while it was paused"))
            return
        # If the state cannot be read, the next write tells.
        share.rules.settings = self.settings_of(share.key.group_id)
        share.settings_changed()

    def permissions_changed(self) -> None:
        for share in self.shares:
            share.permissions_changed()

    # Sessions.

    def end_session(self, session: ShareSession, *, in_order: bool) -> None:
        """A member is gone from this broker: what it holds, others may have. In order, it has closed its
        session; else it has lost its connection."""
        if session.is_over:
            return
        if not in_order:
            self.sessions.lost_count += 1
        self.sessions.end(session)
        group_id = session.group_id
        # Also what it has fetched no more lately it may still hold.
        for share in list(self._by_group.get(group_id, {}).values()):
            share.release(session.member_id, in_order=in_order)
        if not self.sessions.has_members(group_id):
            for share in list(self._by_group.get(group_id, {}).values()):
                if share.rules is not None and share.rules.archiving_count:
                    # Else its dead letters would wait until somebody fetches from it again.
                    continue
                self.fenced(share, ShareFenced(share.key, "its group has no session here"))
            self._settings.pop(group_id, None)

    # What share partitions need.

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def arm(self, share: LiveShare, deadline_ms: int) -> None:
        if self._timers is None:
            self._timers = Timers(asyncio.get_running_loop(), _expire)
        delay_ms = max(deadline_ms - self._clock.wall_ms(), 0)
        self._timers.change((SetTimer(share.key, delay_ms, share),))

    def give_up(self, share: LiveShare, letters: Sequence[DeadLetter], *, is_again: bool = False) -> None:
        if self.write_dead_letters is not None:
            self.write_dead_letters(share, letters, is_again)

    def letters_written(self, share: LiveShare) -> None:
        if not self.sessions.has_members(share.key.group_id):
            self.fenced(share, ShareFenced(share.key, "its group has no session here"))

    def stopped(self, stop: Stop) -> None:
        self.stop_counts[stop] += 1


def _expire(share: object) -> None:
    assert isinstance(share, LiveShare), share
    share.expire()
