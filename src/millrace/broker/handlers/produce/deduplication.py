"""Records that are stored once: the ids that this broker's partitions have stored within their windows.

Looking an id up, thinning the batch and appending it must not be parted by another batch with the same id, so
batches with ids are appended one after the other in each partition. Ids are entered when their batch is in
the log, and not before.

The log is what counts. When this broker begins to lead, the first batch with an id has the tail of the log
read, as far as the window reaches back, in threads and piece by piece. Whoever has waited for long is told to
come again, and the next one goes on where this one has stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.broker.handlers.produce.marked_batches import Looked, thinned
from millrace.core.errors import MillraceError
from millrace.core.lanes import Waits
from millrace.log.batches.checks import check_sent
from millrace.log.partition.appending import Appended, find_original
from millrace.queues.deduplication import IdsNotLoaded, StoredIds
from millrace.queues.marked_records import stored_ids
from millrace.replica.partition import NotLeader
from millrace.wire.batch_header import HEADER, read_header
from millrace.wire.compression import DecompressedTooLarge
from millrace.wire.produce_codec import PartitionResult
from millrace.wire.records import MalformedBatch, check_batch, split_batches

if TYPE_CHECKING:
    from millrace.core.clock import Clock
    from millrace.log.partition.log_slice import LogSlice
    from millrace.replica.partition import Partition
    from millrace.replica.partitions import Partitions

logger: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""How long a request waits for ids to be read from the log, and for those before it."""
PIECE_BYTES: Final = 4 * 1024 * 1024
"""How much of the log is read at a time."""
DROPPED_AT_ONCE: Final = 16
"""When there are too many ids, the partition with the most loses this part of them."""

Append = Callable[[memoryview, bool], Appended | PartitionResult]
"""Appends records, which may be thinned; the other outcome says why not."""


class Outcome(NamedTuple):
    """What came of a batch with ids."""

    appended: Appended | PartitionResult
    repeated: dict[int, None]
    """The places of its records that are stored already, or belong to another batch that was."""


class _Piece(NamedTuple):
    """The ids of one piece of a log: time, base offset and hashes of each batch that has any."""

    batches: list[tuple[int, int, list[int]]]
    next_offset: int
    """Where the next piece begins; -1 if nobody can tell."""


class _Known:
    """The ids of a partition, while this broker leads it."""

    __slots__ = ("ids", "is_loaded", "leaders_count", "lock", "newest_ms", "next_offset", "window_ms")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begin(leaders_count=-1, window_ms=0)

    def begin(self, *, leaders_count: int, window_ms: int) -> None:
        """Forget everything: another may have led meanwhile, or the window reaches further back."""
        self.leaders_count = leaders_count
        self.window_ms = window_ms
        self.ids = StoredIds()
        self.is_loaded = False
        self.next_offset = -1
        self.newest_ms = 0


class Deduplication:
    """The ids of all partitions whose topics ask for it."""

    def __init__(self, partitions: Partitions, clock: Clock, ids_max: int) -> None:
        self._clock = clock
        self.ids_max = ids_max
        """Of all partitions together."""
        self.ids_count = 0
        self.dropped_count = 0
        """How many ids had to go before their time."""
        self._known: dict[Partition, _Known] = {}
        self._partitions = partitions
        partitions.world.watch(self._forget_others)

    async def append_once(
        self, partition: Partition, looked: Looked, append: Append, patience_s: float = PATIENCE_S
    ) -> Outcome:
        """Append a batch without those of its records whose ids are stored. Raises IdsNotLoaded, or NotLeader
        if leadership has changed meanwhile."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = _Known()
        try:
            async with asyncio.timeout_at(until_s):
                await known.lock.acquire()
        except TimeoutError:
            raise IdsNotLoaded(partition.topic_partition) from None
        try:
            return await self._append_next(partition, known, looked, append, until_s)
        finally:
            known.lock.release()

    def own_ids(self, partition: Partition, looked: Looked, base_offset: int) -> dict[int, None]:
        """The places of records of a batch that was appended before whose ids came with other batches."""
        known = self._known.get(partition)
        if known is None:
            return {}
        return {
            place: None
            for place, hashed in looked.marks.ids
            if known.ids.batch_of(hashed) not in (None, base_offset)
        }

    async def _append_next(
        self, partition: Partition, known: _Known, looked: Looked, append: Append, until_s: float
    ) -> Outcome:
        config = partition.log.config
        await self._load(partition, known, config.dedup_window_ms, until_s)
        now_ms = self._clock.wall_ms()
        oldest_ms = now_ms - config.dedup_window_ms
        self.ids_count -= known.ids.expire(oldest_ms)
        repeated = dict.fromkeys(known.ids.repeated(looked.marks.ids, oldest_ms))
        records, is_thinned = looked.records, looked.is_thinned
        if repeated and not _is_sent_again(partition, records):
            if not is_thinned:
                check_sent(records, now_ms, config)
            work = partial(thinned, records, list(repeated), config)
            records = await asyncio.get_running_loop().run_in_executor(None, work)
            is_thinned = True
            if known.leaders_count != partition.leaders_count:
                raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)
        appended = append(records, is_thinned)
        if isinstance(appended, Appended):
            if appended.duplicate:
                return Outcome(appended, self.own_ids(partition, looked, appended.base_offset))
            partition.stats.deduplicated += len(repeated)
            hashes = [hashed for place, hashed in looked.marks.ids if place not in repeated]
            self.ids_count += known.ids.add(hashes, time_ms=now_ms, base_offset=appended.base_offset)
            self._make_room()
        return Outcome(appended, repeated)

    async def _load(self, partition: Partition, known: _Known, window_ms: int, until_s: float) -> None:
        """Read the ids of the log's tail, as far as that is not done."""
        loop = asyncio.get_running_loop()
        if known.leaders_count != partition.leaders_count or window_ms > known.window_ms:
            self.ids_count -= len(known.ids)
            known.begin(leaders_count=partition.leaders_count, window_ms=window_ms)
        log = partition.log
        while not known.is_loaded:
            partition.refuse_unless_leader()
            if known.next_offset < 0:
                found = await log.find_offset_by_timestamp(self._clock.wall_ms() - window_ms)
                known.next_offset = log.log_end_offset if found is None else found.offset
            elif known.next_offset >= log.log_end_offset:
                known.is_loaded = True
            else:
                await self._load_piece(partition, known)
            if known.leaders_count != partition.leaders_count:
                raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)
            # Everybody gets on by one step at least.
            if not known.is_loaded and loop.time() > until_s:
                raise IdsNotLoaded(partition.topic_partition)

    async def _load_piece(self, partition: Partition, known: _Known) -> None:
        log = partition.log
        offset = max(known.next_offset, log.log_start_offset)
        found = log.read(offset, PIECE_BYTES, log.log_end_offset, True)
        lane = log.home.volume.lane(Waits.READ, log.path)
        limit = log.config.max_decompressed_message_bytes
        piece = await asyncio.get_running_loop().run_in_executor(lane, _read_ids, found, limit)
        now_ms = self._clock.wall_ms()
        for time_ms, base_offset, hashes in piece.batches:
            # Producers give their records any time; what stands behind others was not stored before them.
            known.newest_ms = min(max(known.newest_ms, time_ms), now_ms)
            self.ids_count += known.ids.add(hashes, time_ms=known.newest_ms, base_offset=base_offset)
        if piece.next_offset <= offset:
            logger.warning(
                "%s: the log cannot be read from %d on; ids behind it are not known",
                partition.topic_partition,
                offset,
            )
            known.is_loaded = True
        known.next_offset = piece.next_offset
        self._make_room()

    def _make_room(self) -> None:
        """Forget the oldest ids where there are most, if there are too many."""
        while self.ids_count > self.ids_max:
            most = max(self._known.values(), key=lambda known: len(known.ids))
            dropped = most.ids.drop_oldest(len(most.ids) // DROPPED_AT_ONCE + 1)
            self.dropped_count += dropped
            self.ids_count -= dropped

    def _forget_others(self) -> None:
        """Forget the ids of partitions that this broker does not lead any more, or whose topics do not ask
        for it."""
        for partition, known in list(self._known.items()):
            is_here = self._partitions.find(partition.topic, partition.index) is partition
            is_of_use = is_here and partition.is_leader and partition.log.config.dedup_window_ms > 0
            if not is_of_use and not known.lock.locked():
                self.ids_count -= len(known.ids)
                del self._known[partition]


def _is_sent_again(partition: Partition, records: memoryview) -> bool:
    """Whether the batch is in the log already: then the ids that are known may be its own."""
    try:
        return find_original(partition.log, HEADER.unpack_from(records)) is not None
    except MillraceError:
        # The append says what is wrong; thinning would be in vain.
        return True


def _read_ids(found: LogSlice, limit_bytes: int) -> _Piece:
    """The ids in a piece of the log. Runs in a thread."""
    batches: list[tuple[int, int, list[int]]] = []
    next_offset = -1
    try:
        for batch in split_batches(memoryview(found.read())):
            header = read_header(batch)
            next_offset = header.next_offset
            try:
                check_batch(batch)
                hashes = stored_ids(batch, limit_bytes)
            except (MalformedBatch, DecompressedTooLarge) as error:
                logger.warning("ids cannot be read: %s", error)
                continue
            if hashes:
                batches.append((header.max_timestamp, header.base_offset, hashes))
    except MalformedBatch as error:
        logger.warning("ids cannot be read: %s", error)
    return _Piece(batches, next_offset)
