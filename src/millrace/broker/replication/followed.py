"""One partition in the care of a fetcher: what the fetcher asked its leader, and what is to be done about the
answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.broker.replication.throttles import Throttle
from millrace.replica.following import (
    MoveStart,
    Position,
    Repair,
    StartInside,
    StartOver,
    Truncate,
    position_of,
)
from millrace.replica.partition import Partition

log = logging.getLogger(__name__)

REPAIRS_IN_A_ROW_MAX: Final = 20
"""How often a log may be cut without getting a record before its leader is asked more slowly. Histories that
differ take one cut for each epoch; more than this is a circle."""

NOTHING_ASKED: Final = Position(-1, -1, -1)


class Followed:
    """A partition that this broker follows."""

    __slots__ = (
        "asked",
        "asked_epoch",
        "failures",
        "is_busy",
        "is_named",
        "leader_epoch",
        "leader_high_watermark",
        "partition",
        "repairs_count",
        "reserved",
        "retry",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.asked = NOTHING_ASKED
        self.asked_epoch = -1
        self.is_busy = False
        """A task changes its log, and names the partition again afterwards."""
        self.is_named = False
        """Whether the partition is in the leader's session."""
        self.failures = 0
        self.repairs_count = 0
        """How often the log was cut since records were last appended."""
        self.retry: asyncio.TimerHandle | None = None
        self.leader_high_watermark = -1
        """What the leader told last. No producer waits for a follower that has less."""
        self.reserved: tuple[Throttle, int] | None = None
        """The bytes that the answer to come has taken from a quota."""

    def ask(self, position: Position) -> None:
        """Note what the leader is about to hear: the log is at this position."""
        self.asked = position
        self.asked_epoch = self.leader_epoch
        self.is_named = True

    def return_quota(self, used_bytes: int) -> None:
        """Give back what an answer of this size has left of its quota."""
        if self.reserved is not None:
            throttle, taken_bytes = self.reserved
            self.reserved = None
            throttle.give_back(taken_bytes - used_bytes)

    async def carry_out(self, repair: Repair) -> bool:
        """Do what takes more than an append. False if the leader should not be asked again at once, since the
        repair has changed nothing and the answer would be the same."""
        partition = self.partition
        if partition.is_leader or partition.leader_epoch != self.leader_epoch:
            # The term in which this was decided is over: what a former leader wanted gone may be committed by
            # now.
            return True
        partition_log = partition.log
        match repair:
            case Truncate(offset):
                log.info(
                    "%s: cutting the log from %d to %d, as its leader's history demands",
                    partition.topic_partition,
                    partition_log.log_end_offset,
                    offset,
                )
                await partition_log.truncate_to(offset)
            case StartOver(offset):
                log.info("%s: the log starts over at offset %d", partition.topic_partition, offset)
                await partition_log.truncate_fully_and_start_at(offset)
                partition_log.high_watermark = max(partition_log.high_watermark, offset)
            case StartInside(records):
                log.info(
                    "%s: the log starts at offset %d, inside of a batch",
                    partition.topic_partition,
                    partition_log.log_start_offset,
                )
                await partition_log.start_inside(memoryview(records))
                return True
            case MoveStart(offset):
                await partition_log.delete_records_before(offset)
                partition.changed()
                return True
        self.repairs_count += 1
        is_asked_anew = self.leader_epoch != self.asked_epoch or position_of(partition_log) != self.asked
        return is_asked_anew and self.repairs_count <= REPAIRS_IN_A_ROW_MAX
