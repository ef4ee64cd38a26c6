"""What batches that came back say of transactions and producers.

While a range is in quarantine, a start builds the index of aborted transactions and the producers' state from
the batches around it. When the range is back, both are made again from the last snapshot before it: else
readers of committed records would see what was aborted, and a batch that is sent again would be appended
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog
from millrace.log.partition.isolation import isolate_in
from millrace.log.segments.detached_segment import DetachedSegment, detached
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state import producer_snapshots
from millrace.log.state.producer_state import ProducerStates
from millrace.log.state.transactions import apply_batch

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

ROUNDS_MAX: Final = 3
REST_BYTES_MAX: Final = 256 * 1024
"""So much is replayed on the loop, between two appends."""


@dataclass(slots=True)
class _Replay:
    """How far the log was read again, and what that gave."""

    states: ProducerStates
    offset: int
    reached: tuple[int, int] = (-1, 0)
    """The base offset of the segment that the replay has reached, and the position there."""
    aborted: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    """Aborted transactions, by the base offset of the segment that they end in."""
    snapshots: list[str] = field(default_factory=list)


async def bring_back_state(log: PartitionLog, damaged: DamagedRange) -> bool:
    """Make right what depends on a range whose bytes are back; False if the log changed meanwhile."""
    try:
        return await _bring_back(log, damaged)
    except CorruptLog as error:
        # Something else is damaged, too. The next attempt skips it.
        isolate_in(log, error)
        return False


async def _bring_back(log: PartitionLog, damaged: DamagedRange) -> bool:
    live = log.producers
    loop = asyncio.get_running_loop()
    volume, now_ms = log.home.volume, log.home.wall_ms()
    rounds_left = ROUNDS_MAX
    while True:
        rounds_left -= 1
        end_offset, size_bytes = log.log_end_offset, log.size_bytes
        replay = await loop.run_in_executor(
            volume.lane(Waits.FILES, log.path),
            _replay,
            volume,
            log.path,
            _views(log, damaged),
            damaged.first_offset,
            end_offset,
            now_ms,
        )
        if log.is_closed or log.producers is not live or log.log_end_offset < end_offset:
            return False
        if log.size_bytes - size_bytes <= REST_BYTES_MAX or rounds_left == 0:
            break
    _replay_up_to(volume, replay, _views(log, damaged), log.log_end_offset, damaged.first_offset, now_ms)
    replay.states.truncate_from_start(log.log_start_offset)
    live.correct_by(replay.states, ended_before=damaged.next_offset)
    for segment in log.segments:
        found = replay.aborted.get(segment.base_offset)
        if found is not None:
            _enter(segment, found)
    log.aborted_replaced()
    _forget_snapshots(log, replay, damaged.first_offset)
    return True


def _views(log: PartitionLog, mended: DamagedRange) -> tuple[DetachedSegment, ...]:
    """The segments as they are without the damage that is mended."""
    views = tuple(detached(segment, log.home.volume) for segment in log.segments)
    for view in views:
        view.damage = tuple(
            other
            for other in view.damage
            if (other.position, other.first_offset) != (mended.position, mended.first_offset)
        )
    return views


def _replay(
    volume: Volume,
    directory: str,
    views: Sequence[DetachedSegment],
    first_offset: int,
    end_offset: int,
    now_ms: int,
) -> _Replay:
    """Apply all batches since the newest snapshot from before the damage. Runs in the executor."""
    offset, states = producer_snapshots.newest_snapshot(
        volume, directory, first_offset=views[0].base_offset, end_offset=first_offset, now_ms=now_ms
    )
    replay = _Replay(states, offset)
    _replay_up_to(volume, replay, views, end_offset, first_offset, now_ms)
    return replay


def _replay_up_to(
    volume: Volume,
    replay: _Replay,
    views: Sequence[DetachedSegment],
    end_offset: int,
    first_offset: int,
    now_ms: int,
) -> None:
    start = replay.offset
    for number, view in enumerate(views):
        if (number + 1 < len(views) and views[number + 1].base_offset <= start) or view.size_bytes == 0:
            continue
        if view.base_offset >= end_offset:
            break
        if view.base_offset > max(first_offset, start):
            replay.snapshots.append(
                producer_snapshots.save_snapshot(volume, view.directory, view.base_offset, replay.states)
            )
        known_position = replay.reached[1] if replay.reached[0] == view.base_offset else 0
        for position, header in view.headers(known_position):
            if header.last_offset < start or header.base_offset >= end_offset or header.producer_id < 0:
                continue
            batch = view.file.read_at(position, header.size_bytes) if header.is_control else b""
            aborted = apply_batch(replay.states, header, batch, now_ms)
            if aborted is not None:
                replay.aborted.setdefault(view.base_offset, []).append(aborted)
        replay.reached = view.base_offset, view.size_bytes
        view.close()
    replay.offset = end_offset


def _enter(segment: Segment, found: list[AbortedTransaction]) -> None:
    """Correct the entries that were made without the missing batches. The other entries stay: compaction may
    have taken the batches that they speak of."""
    present = segment.txn_index.all_aborted()
    wanted = {(aborted.producer_id, aborted.last_offset): aborted for aborted in (*present, *found)}
    ordered = sorted(wanted.values(), key=lambda aborted: aborted.last_offset)
    if ordered != list(present):
        segment.replace_aborted(ordered)


def _forget_snapshots(log: PartitionLog, replay: _Replay, first_offset: int) -> None:
    """Remove the snapshots behind the damage, which were made without the batches in it."""
    volume = log.home.volume
    for path in replay.snapshots:
        log.sync_later(path)
    for offset in producer_snapshots.snapshot_offsets(volume, log.path):
        path = segment_path(log.path, offset, SNAPSHOT_SUFFIX)
        if offset > first_offset and path not in replay.snapshots:
            volume.remove(path)
