"""What the leader of a replicated partition knows of its followers, and what follows from it: which of them
are in sync, and up to where records are committed.

These are rules without I/O: fetches, states of the partition and time go in (milliseconds of any steady
clock), offsets and wishes come out.

Two sets of in-sync replicas matter. `isr` is what the metadata says: these replicas may be elected. A wish to
add somebody counts from the moment it is sent, because it may be granted before this broker hears of it:
until then a record is committed only if everybody in the larger set, the maximal one, has it (KIP-497). While
fewer than `min.insync.replicas` are in sync nothing more is committed at all (KIP-966): a replica that is
left may lose its disk's cache, and nobody may have relied on what it alone had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

UNKNOWN_OFFSET: Final = -1
NEVER_MS: Final = -(2**62)


class FollowerProgress:
    """One follower as its fetches show it."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_at_fetch",
        "fetched_ms",
        "has_lost_records",
        "is_counted",
        "log_end_offset",
        "log_start_offset",
        "node_id",
    )

    def __init__(self, node_id: int, caught_up_ms: int) -> None:
        self.node_id = node_id
        self.broker_epoch = -1
        """The epoch of the process that asks: one that has started again may have lost records."""
        self.log_end_offset = UNKNOWN_OFFSET
        """The offset it asked for last: it has everything below. Unknown until it asks in this epoch."""
        self.log_start_offset = UNKNOWN_OFFSET
        self.fetched_ms = NEVER_MS
        self.end_at_fetch = UNKNOWN_OFFSET
        """Where the leader's log ended when the follower last asked."""
        self.caught_up_ms = caught_up_ms
        """The last moment at which it is known to have had everything."""
        self.is_counted = False
        """Whether it is in the maximal set of in-sync replicas."""
        self.has_lost_records = False
        """Whether it was in sync and came back for records that were committed already."""


class Leadership:
    """One leader epoch of a partition with several replicas, seen by its leader."""

    __slots__ = (
        "_followers",
        "_lag_ms_max",
        "_now_ms",
        "_wished",
        "epoch_start_offset",
        "isr",
        "leader_epoch",
        "min_insync",
        "node_id",
        "partition_epoch",
        "replicas",
    )

    def __init__(
        self, node_id: int, *, leader_epoch: int, epoch_start_offset: int, lag_ms_max: int, now_ms: int
    ) -> None:
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        """Where the log ended when this epoch began: a follower with less may lack committed records."""
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.partition_epoch = -1
        self.min_insync = 1
        self._lag_ms_max = lag_ms_max
        self._now_ms = now_ms
        self._followers: dict[int, FollowerProgress] = {}
        self._wished: tuple[int, ...] | None = None

    @property
    def followers(self) -> tuple[FollowerProgress, ...]:
        return tuple(self._followers.values())

    @property
    def wished_isr(self) -> tuple[int, ...] | None:
        """What the metadata was asked to make the in-sync replicas, while its answer is not known."""
        return self._wished

    @property
    def has_enough_replicas(self) -> bool:
        """Whether acks=all can be promised now. A partition cannot ask for more replicas than it has."""
        return len(self.isr) >= min(self.min_insync, len(self.replicas))

    # What the metadata says.

    def update(
        self, *, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, now_ms: int
    ) -> None:
        """Take over the partition's state, unless a newer one is known."""
        if partition_epoch < self.partition_epoch:
            return
        self._now_ms = max(self._now_ms, now_ms)
        was_in_sync = self.isr
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        if partition_epoch > self.partition_epoch:
            # Any wish rested on another state: it came true, or never will.
            self._wished = None
        is_first = self.partition_epoch < 0
        self.partition_epoch = partition_epoch
        followers: dict[int, FollowerProgress] = {}
        for node_id in self.replicas:
            if node_id == self.node_id:
                continue
            follower = self._followers.get(node_id)
            if follower is None:
                # Replicas in sync have the time of their lag to come forward to a new leader.
                in_time = is_first and node_id in self.isr
                follower = FollowerProgress(node_id, self._now_ms if in_time else NEVER_MS)
            elif node_id in was_in_sync and node_id not in self.isr:
                # A follower that left the ISR has to show anew that it keeps up before anybody waits for it.
                follower.caught_up_ms = NEVER_MS
            follower.is_counted = self._counts(node_id)
            followers[node_id] = follower
        self._followers = followers

    # What followers say.

    @property
    def broker_epochs(self) -> dict[int, int]:
        """The epochs of the followers' brokers that have asked in this leader epoch."""
        return {
            follower.node_id: follower.broker_epoch
            for follower in self._followers.values()
            if follower.broker_epoch >= 0
        }

    def fetched(
        self,
        node_id: int,
        *,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        is_leaving: bool = False,
    ) -> bool:
        """Note that a follower whose history is ours asked for the records from `offset` on. False if it is
        no follower. One that is about to stop may fetch, but is not expected to catch up."""
        follower = self._followers.get(node_id)
        if follower is None:
            return False
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if is_leaving:
            # The follower will be gone before it could take what comes next.
            follower.caught_up_ms = NEVER_MS
        elif offset >= log_end_offset:
            follower.caught_up_ms = now_ms
        elif 0 <= follower.end_at_fetch <= offset and follower.fetched_ms > follower.caught_up_ms:
            # The follower has now what there was when it asked before: then it was as good as caught up.
            follower.caught_up_ms = follower.fetched_ms
        follower.broker_epoch = broker_epoch
        follower.log_end_offset = offset
        follower.log_start_offset = log_start_offset
        follower.fetched_ms = now_ms
        follower.end_at_fetch = log_end_offset
        return True

    def lost(self, node_id: int) -> None:
        """Note that a follower fetches no more. If it is in sync, it has its time to come back; else nobody
        waits for it."""
        follower = self._followers.get(node_id)
        if follower is not None and not follower.is_counted:
            follower.caught_up_ms = NEVER_MS

    def tick(self, now_ms: int) -> None:
        """Note that time has passed."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms

    def note_high_watermark(self, node_id: int, high_watermark: int) -> bool:
        """Compare a follower's position with what is committed: True if it should join or leave the ISR."""
        follower = self._followers.get(node_id)
        if follower is None or follower.log_end_offset == UNKNOWN_OFFSET:
            return False
        if node_id in self.isr:
            if follower.log_end_offset < high_watermark:
                follower.has_lost_records = True
            return follower.has_lost_records
        if follower.has_lost_records and follower.log_end_offset >= high_watermark:
            follower.has_lost_records = False
        return self._may_join(follower, high_watermark)

    # What follows.

    def committed_up_to(self, own_end_offset: int) -> int:
        """Up to where all replicas that count have the records; -1 if that cannot be said."""
        if not self.has_enough_replicas:
            return UNKNOWN_OFFSET
        lowest = own_end_offset
        for follower in self._followers.values():
            end = follower.log_end_offset
            if end < lowest and (follower.is_counted or self._is_about_to_join(follower)):
                lowest = end
        return lowest

    def low_watermark(self, own_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """Where the log begins at the replica that has deleted least; -1 if one has not said so in this
        epoch. Replicas that are gone delete when they come back."""
        lowest = own_start_offset
        for follower in self._followers.values():
            if follower.log_start_offset < lowest and is_alive(follower.node_id):
                lowest = follower.log_start_offset
        return lowest

    def wish(
        self,
        *,
        log_end_offset: int,
        high_watermark: int,
        now_ms: int,
        is_eligible: Callable[[int], bool],
    ) -> tuple[int, ...] | None:
        """The in-sync replicas as they should be, if they should change. From then on the wish counts as
        sent, until the metadata grants it or `refused` is called."""
        if self._wished is not None:
            return None
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        wished = [
            node_id
            for node_id in self.isr
            if node_id == self.node_id or self._is_in_sync(node_id, log_end_offset)
        ]
        for node_id, follower in self._followers.items():
            if (
                node_id not in self.isr
                and self._may_join(follower, high_watermark)
                and not follower.has_lost_records
                and is_eligible(node_id)
            ):
                wished.append(node_id)
        if sorted(wished) == sorted(self.isr):
            return None
        self._wished = tuple(wished)
        self._count()
        return self._wished

    def refused(self) -> None:
        """Forget the wish, which will certainly not come true."""
        self._wished = None
        self._count()

    def waits_for(self, node_id: int) -> bool:
        """Whether nothing is committed without this follower, so that holding it back would hold up
        producers."""
        follower = self._followers.get(node_id)
        return follower is not None and (follower.is_counted or self._is_about_to_join(follower))

    # Helpers.

    def _counts(self, node_id: int) -> bool:
        """Whether a follower is in the maximal set of in-sync replicas."""
        return node_id in self.isr or (self._wished is not None and node_id in self._wished)

    def _count(self) -> None:
        for node_id, follower in self._followers.items():
            follower.is_counted = self._counts(node_id)

    def _is_in_sync(self, node_id: int, log_end_offset: int) -> bool:
        follower = self._followers.get(node_id)
        if follower is None or follower.has_lost_records:
            return False
        if follower.log_end_offset >= log_end_offset:
            # The follower has everything, whenever it asked last: only from now on can it fall behind.
            follower.caught_up_ms = self._now_ms
            return True
        return self._now_ms - follower.caught_up_ms <= self._lag_ms_max

    def _may_join(self, follower: FollowerProgress, high_watermark: int) -> bool:
        end = follower.log_end_offset
        return end >= high_watermark and end >= self.epoch_start_offset

    def _is_about_to_join(self, follower: FollowerProgress) -> bool:
        """Whether commits wait for a follower that keeps up: under load it could never catch up otherwise."""
        return (
            follower.log_end_offset >= self.epoch_start_offset
            and self._now_ms - follower.caught_up_ms <= self._lag_ms_max
            and not follower.has_lost_records
        )
