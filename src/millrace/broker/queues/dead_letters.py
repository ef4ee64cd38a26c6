"""Writes dead letters: reads the records that a share partition gives up, appends them to the group's
dead-letter topic wherever that is led, and says so when they are committed.

Until then the share partition keeps its records, so a dead-letter topic that is missing, full or away loses
nothing: the writing is tried again, ever more slowly, without end. Each share partition has a writer of its
own, which holds no more than one batch, and only one writer at a time holds one for each partition of a
dead-letter topic. So a topic that hangs costs little, and holds up only those who need it.

An append whose answer is lost is tried again under the same sequence number, and is stored once. But dead
letters and the state of the share partition are in different logs: who dies between the two writes a dead
letter again. Therefore the end of the dead-letter partition is looked at first when a share partition was
just loaded; this needs the partition to be led here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from millrace.broker.internal_appends import AppendRefused, InternalAppends, may_pass
from millrace.broker.queues.dead_letter_places import Place, Places
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.lanes import Waits
from millrace.log.errors import BatchTooLarge, OffsetOutOfRange
from millrace.log.partition.appending import Appended
from millrace.metadata.errors import MetadataError, TopicExists
from millrace.metadata.service import Metadata, NewTopic
from millrace.queues.dead_letters import (
    Letters,
    Source,
    Stamp,
    build_bare_letters,
    build_letters,
    offsets_in,
)
from millrace.queues.share_partition.changes import DeadLetter
from millrace.wire.compression import DecompressedTooLarge
from millrace.wire.error_codes import ErrorCode
from millrace.wire.record_spans import MalformedBatch

if TYPE_CHECKING:
    from millrace.core.background import StartTask
    from millrace.core.clock import Clock
    from millrace.log.partition.partition_log import PartitionLog
    from millrace.metadata.image import Image
    from millrace.queues.share_partition.model import ShareKey
    from millrace.queues.share_partition.partition import SharePartition
    from millrace.replica.partition import Partition
    from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)

T = TypeVar("T")

RECORDS_MAX: Final = 500
READ_BYTES: Final = 256 * 1_024
"""So much of a log is read for one batch of dead letters; a larger batch of records comes whole."""
TAIL_RECORDS: Final = 1_000
TAIL_BYTES: Final = 1_024 * 1_024
"""How much of a dead-letter partition's end is looked at for what is written already."""
APPEND_DEADLINE_S: Final = 10.0
PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 60.0


class DeadLetterTopicUnusable(MillraceError):
    """A group's dead letters have no place to go; its administrator has to make one."""


class DeadLetterSettings(NamedTuple):
    """What counts for the dead letters of all groups."""

    topic_prefix: str
    """How the names of dead-letter topics begin; empty for any."""
    creates_topics: bool
    new_topic_configs: Mapping[str, str]
    """The settings of a dead-letter topic that is made here."""


class GivingUp(Protocol):
    """A share partition that gives up records."""

    key: ShareKey
    partition: Partition
    rules: SharePartition | None
    error: MillraceError | None
    """Why this broker serves it no more. Then somebody else writes its dead letters."""

    def dead_letter_written(self, first: int, last: int) -> None: ...


class DeadLetters:
    """The dead letters of all share partitions of this broker."""

    def __init__(
        self,
        appends: InternalAppends,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        start_task: StartTask,
        settings: Callable[[], DeadLetterSettings],
        is_enabled: Callable[[Mapping[str, str]], bool],
        next_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        """`is_enabled` says, given a topic's own settings, whether groups may write dead letters to it."""
        self._appends = appends
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._start_task = start_task
        self._settings = settings
        self._is_enabled = is_enabled
        self._next_producer_id = next_producer_id
        self._queues: dict[GivingUp, deque[DeadLetter]] = {}
        self._places = Places()
        self._pausing: dict[asyncio.Future[None], str] = {}
        """Writers that wait until they try again, and the topics of their groups."""
        self.written_count = 0
        """How many records' dead letters are committed."""
        self.failed_count = 0
        """How often dead letters could not be written, and are tried again."""

    @property
    def writers_count(self) -> int:
        """How many share partitions have dead letters that are not written."""
        return len(self._queues)

    def write(self, share: GivingUp, letters: Sequence[DeadLetter], is_again: bool = False) -> None:
        """Write dead letters behind those that the share partition has given before; `is_again` if somebody
        may have written some of them already, before the share partition was loaded."""
        queue = self._queues.get(share)
        if queue is not None:
            queue.extend(letters)
            return
        self._queues[share] = deque(letters)
        self._start_task(self._write_all(share, is_again=is_again))

    def metadata_changed(self, old: Image, new: Image) -> None:
        """Have writers try again at once whose topic was made or changed."""
        if old.topics is not new.topics:
            for woken, name in self._pausing.items():
                if old.topics.get(name) is not new.topics.get(name):
                    _wake(woken)

    async def _write_all(self, share: GivingUp, *, is_again: bool) -> None:
        queue = self._queues[share]
        writing = _Writing(share)
        writing.is_unsure = is_again
        pause_s = PAUSE_S
        try:
            while queue and share.error is None:
                letter = queue[0]
                try:
                    last = await self._write_some(writing, letter)
                except MillraceError as error:
                    pause_s = await self._pause(writing, error, pause_s)
                    continue
                pause_s = PAUSE_S
                queue.popleft()
                if last < letter.last_offset:
                    queue.appendleft(letter._replace(first_offset=last + 1))
                if last >= letter.first_offset and share.error is None:
                    share.dead_letter_written(letter.first_offset, last)
        finally:
            del self._queues[share]

    async def _write_some(self, writing: _Writing, letter: DeadLetter) -> int:
        """Write the first of these dead letters; the last offset that is written."""
        share = writing.share
        assert share.rules is not None, share.key
        settings = share.rules.settings
        if not settings.dead_letter_topic:
            # The group has been told meanwhile to do without.
            return letter.last_offset
        place = self._places.find(await self._place(share, settings.dead_letter_topic), self._metadata.image)
        async with place.lock:
            if not writing.wants(place):
                # Things have changed while others wrote.
                return letter.first_offset - 1
            if writing.is_unsure:
                writing.written = await self._written(place.at, writing.source)
                writing.is_unsure = False
            stamp = await place.stamp(self._next_producer_id)
            letters = await self._build(writing, letter, stamp, copies=settings.copies_dead_letters)
            if letters.batch:
                appended = await self._append(writing, place, letters.batch)
                if isinstance(appended, MillraceError):
                    if not _is_too_large(appended):
                        raise appended
                    return self._make_smaller(writing, letter, appended)
                writing.records_max = RECORDS_MAX
        return letters.last_offset

    async def _append(self, writing: _Writing, place: Place, batch: bytes) -> Appended | MillraceError:
        """Append until it is known what has become of the batch. The place stays locked meanwhile: a batch of
        somebody else between two attempts would make the second one look like another batch."""
        pause_s = PAUSE_S
        while True:
            outcome = await self._appends.append(*place.at, batch, deadline_s=APPEND_DEADLINE_S)
            if not isinstance(outcome, MillraceError):
                count = outcome.last_offset - outcome.base_offset + 1
                place.stored(count)
                self.written_count += count
                return outcome
            if _is_too_large(outcome):
                return outcome
            if may_pass(outcome):
                pause_s = await self._pause(writing, outcome, pause_s)
                if writing.wants(place):
                    continue
            place.begin_anew()
            writing.is_unsure = True
            return outcome

    async def _pause(self, writing: _Writing, error: MillraceError, pause_s: float) -> float:
        """Wait before another attempt; how long to wait before the one after it."""
        self.failed_count += 1
        group_id = writing.share.key.group_id
        log.warning("dead letters of group %s wait, tried again in %.1f s: %s", group_id, pause_s, error)
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._pausing[woken] = writing.topic
        timer = loop.call_later(pause_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            del self._pausing[woken]
        return min(2 * pause_s, PAUSE_S_MAX)

    def _make_smaller(self, writing: _Writing, letter: DeadLetter, refusal: MillraceError) -> int:
        """Try fewer records next time, and a single one without its content: that it does not fit is no
        reason to lose sight of it. Nothing is written by this."""
        if writing.records_max > 1:
            writing.records_max //= 2
        else:
            writing.bare_offset = letter.first_offset
            log.warning("%s: the dead letter comes without key, value and headers", refusal)
        return letter.first_offset - 1

    async def _place(self, share: GivingUp, name: str) -> TopicPartition:
        topic = self._metadata.image.topics.get(name)
        settings = self._settings()
        if not name.startswith(settings.topic_prefix):
            raise DeadLetterTopicUnusable(
                f"the name of dead-letter topic {name} does not begin with {settings.topic_prefix!r}, as "
                "errors.deadletterqueue.topic.name.prefix wants it"
            )
        if topic is None:
            if not settings.creates_topics:
                raise DeadLetterTopicUnusable(f"there is no dead-letter topic {name}")
            new = NewTopic(name=name, configs=settings.new_topic_configs)
            (created,) = await self._metadata.create_topics([new])
            if isinstance(created, MetadataError) and not isinstance(created, TopicExists):
                raise created
            topic = self._metadata.image.topics.get(name)
            if topic is None:
                raise DeadLetterTopicUnusable(f"dead-letter topic {name} is being made")
        if not self._is_enabled(topic.configs):
            raise DeadLetterTopicUnusable(
                f"topic {name} takes no dead letters: its errors.deadletterqueue.group.enable is not true"
            )
        return TopicPartition(name, share.key.partition % len(topic.partitions))

    async def _build(self, writing: _Writing, letter: DeadLetter, stamp: Stamp, *, copies: bool) -> Letters:
        source_log = writing.share.partition.log
        now_ms = self._clock.wall_ms()
        log_start = source_log.log_start_offset
        if letter.first_offset < log_start:
            last = min(letter.last_offset, log_start - 1, letter.first_offset + RECORDS_MAX - 1)
            return build_bare_letters(writing.source, letter, last, now_ms=now_ms, stamp=stamp)
        try:
            found = source_log.read(letter.first_offset, READ_BYTES, letter.last_offset + 1, True)
        except OffsetOutOfRange:
            return await self._build(writing, letter, stamp, copies=copies)
        if not found.size_bytes:
            # There is nothing of these offsets any more.
            return Letters(b"", letter.last_offset)
        build = partial(
            build_letters,
            source=writing.source,
            letter=letter,
            now_ms=now_ms,
            records_max=writing.records_max,
            copies=copies and writing.bare_offset != letter.first_offset,
            stamp=stamp,
            written=writing.written,
        )
        try:
            letters = await _off_loop(source_log, lambda: build(found.read()))
        except (MalformedBatch, DecompressedTooLarge) as error:
            # Nobody can read it, however often it is tried. Others wait behind it.
            log.error("%s: dead letters come without content: %s", writing.share.partition, error)
            last = min(letter.last_offset, letter.first_offset + RECORDS_MAX - 1)
            return build_bare_letters(writing.source, letter, last, now_ms=now_ms, stamp=stamp)
        if letters.last_offset < letter.first_offset and not letters.batch:
            # The records that follow were compacted away up to another file's beginning.
            return letters._replace(last_offset=letter.first_offset)
        return letters

    async def _written(self, place: TopicPartition, source: Source) -> frozenset[int]:
        """Whose dead letters are among the last of a partition, as far as this broker can see."""
        partition = self._partitions.find(*place)
        if partition is None or not partition.is_leader:
            return frozenset()
        tail = partition.log
        first = max(tail.log_start_offset, tail.log_end_offset - TAIL_RECORDS)
        found = tail.read(first, TAIL_BYTES, tail.log_end_offset, True)
        return await _off_loop(tail, lambda: offsets_in(found.read(), source))


class _Writing:
    """Where the writer of a share partition is."""

    __slots__ = ("bare_offset", "is_unsure", "records_max", "share", "source", "written")

    def __init__(self, share: GivingUp) -> None:
        self.share = share
        place = share.partition.topic_partition
        self.source = Source(share.key.group_id, place.topic, place.partition)
        self.records_max = RECORDS_MAX
        self.is_unsure = False
        """Whether some may be written that nobody has told the share partition of."""
        self.written: frozenset[int] = frozenset()
        self.bare_offset = -1
        """The record that does not fit with its content."""

    @property
    def topic(self) -> str:
        """Where the group wants its dead letters; empty if it wants none."""
        return "" if self.share.rules is None else self.share.rules.settings.dead_letter_topic

    def wants(self, place: Place) -> bool:
        """Whether the dead letters still go there, and it is still this broker that writes them."""
        return self.share.error is None and self.topic == place.at.topic


async def _off_loop(home: PartitionLog, work: Callable[[], T]) -> T:
    lane = home.home.volume.lane(Waits.READ, home.path)
    return await asyncio.get_running_loop().run_in_executor(lane, work)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _is_too_large(error: MillraceError) -> bool:
    if isinstance(error, AppendRefused):
        return error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    return isinstance(error, BatchTooLarge)
