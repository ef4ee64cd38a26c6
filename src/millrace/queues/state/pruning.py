"""Keeps the partitions of `__share_group_state` short: deletes the records that no share partition needs.

A round takes a mark: the end of the log, and how many snapshots it has. Once every share partition has a
snapshot behind the mark, nobody needs a record before it. Those that are written to get one by themselves;
the others hold the mark back and have theirs written anew, if the log has grown enough to be worth it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from millrace.coordinator.runtime import Runtime, Shard
from millrace.core.errors import MillraceError
from millrace.queues.state.commands import RewriteSnapshots, StateSettings
from millrace.queues.state.machine import ShareStateMachine

log = logging.getLogger(__name__)

SNAPSHOTS_PER_TURN: Final = 100
"""So many snapshots are written anew before others have their turn."""
WORTHWHILE: Final = 2
"""Snapshots are written anew only where the log has this many records for each of them: those of share
partitions that nobody uses would else be copied again and again for the sake of a few others."""


class Mark(NamedTuple):
    """A place in a log at which a round began."""

    shard: Shard
    end_offset: int
    snapshot_number: int
    since_s: float


class Pruning:
    """The rounds of all partitions that this broker has loaded."""

    def __init__(self, runtime: Runtime, settings: StateSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._marks: dict[int, Mark] = {}

    async def run(self) -> None:
        """Go through all partitions, again and again."""
        while True:
            await asyncio.sleep(self._settings.prune_interval_ms / 1000)
            for index in list(self._marks):
                if index not in self._runtime.shards:
                    del self._marks[index]
            for index, shard in list(self._runtime.shards.items()):
                await self.look_at(index, shard)

    async def look_at(self, index: int, shard: Shard) -> None:
        """Set a mark, or finish the round of the mark that is set."""
        machine = shard.machine
        assert isinstance(machine, ShareStateMachine), machine
        mark = self._marks.get(index)
        if mark is None or mark.shard is not shard:
            self._set_mark(index, shard, machine)
            return
        if machine.has_older(mark.snapshot_number):
            age_s = asyncio.get_running_loop().time() - mark.since_s
            if age_s * 1000 < self._settings.rewrite_interval_ms or not _is_worthwhile(shard, machine):
                return
        if not await self._rewrite(shard, mark):
            return
        del self._marks[index]
        await _delete_before(shard, mark.end_offset)
        if not shard.is_over:
            self._set_mark(index, shard, machine)

    def _set_mark(self, index: int, shard: Shard, machine: ShareStateMachine) -> None:
        # What is staged has been applied, so it must lie before the mark.
        if shard.is_over or not shard.write_staged():
            return
        end_offset = shard.partition.log.log_end_offset
        if end_offset > shard.partition.log.log_start_offset:
            now_s = asyncio.get_running_loop().time()
            self._marks[index] = Mark(shard, end_offset, machine.snapshots_count, now_s)

    async def _rewrite(self, shard: Shard, mark: Mark) -> bool:
        """Whether every share partition has a committed snapshot behind the mark."""
        command = RewriteSnapshots(mark.snapshot_number, SNAPSHOTS_PER_TURN)
        while not shard.is_over:
            outcome = shard.submit(command)
            # The answer comes when all that was written before is committed, also if this writes nothing.
            outcome = await outcome if isinstance(outcome, asyncio.Future) else outcome
            if isinstance(outcome, MillraceError):
                log.warning("%s: snapshots were not written: %s", shard.partition.topic_partition, outcome)
                return False
            if outcome == 0:
                return True
            await asyncio.sleep(0)
        return False


def _is_worthwhile(shard: Shard, machine: ShareStateMachine) -> bool:
    partition_log = shard.partition.log
    records_count = partition_log.log_end_offset - partition_log.log_start_offset
    return records_count > WORTHWHILE * len(machine.states)


async def _delete_before(shard: Shard, offset: int) -> None:
    partition = shard.partition
    if shard.is_over or not partition.is_leader or offset <= partition.log.log_start_offset:
        return
    try:
        await partition.log.delete_records_before(offset)
    except MillraceError as error:
        log.warning("%s: records below %d stay: %s", partition.topic_partition, offset, error)
        return
    # Those who wait to read what is gone must hear of it, followers among them.
    partition.changed()
