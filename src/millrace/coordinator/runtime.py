"""Owns the partitions of one internal topic that this broker leads: loads each into a machine of rules, gives
it commands, stores what it decides, and answers when that is committed. It does not know what the rules are
about.

It takes one command at a time, and never awaits between deciding, applying and writing: nobody ever sees half
a decision. It writes a decision at once, as a batch of its own. Only records that were applied by other means
than a decision (`stage`: commits of offsets, of which there are many) may wait for others of the same turn of
the loop; they are written before the next decision is made. If writing fails, the machine has seen what the
log has not: the runtime drops it and loads it again, and tells everybody who waits to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from millrace.coordinator import loading
from millrace.coordinator.decision import (
    Decision,
    Machine,
    Producer,
    RecordCodec,
    Token,
    TransactionalRecord,
    TransactionEnded,
)
from millrace.coordinator.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
    RecordsTooLarge,
)
from millrace.coordinator.staged_answers import JointAnswer, StagedAnswer, tell
from millrace.coordinator.timers import Timers
from millrace.core.background import Background
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.lanes import Waits
from millrace.core.turn_batching import TurnBatching
from millrace.log.state.transactions import EndMarker
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.wire.batch_header import HEADER_SIZE
from millrace.wire.records import Record as StoredRecord
from millrace.wire.records import build_batch, build_plain_batch

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""The time between attempts to load a partition that could not be read."""
COMMIT_WAIT_S: Final = 0.01
"""The time between looks at a log whose end is not committed yet."""
RECORD_OVERHEAD: Final = 32
"""How many bytes a stored record takes beside its key and value, at most."""

Outcome = object
"""What a command leads to: a response, or a MillraceError as a value."""
Answer = asyncio.Future[Outcome]
Effect = Callable[["Shard", object], None]


class Waiter(Protocol):
    """Takes an outcome: a future, or several requests that wait for the same batch."""

    def done(self) -> bool: ...

    def set_result(self, outcome: Outcome, /) -> None: ...


class Shard:
    """One partition and its machine, from the end of loading to the end of leadership."""

    def __init__(
        self,
        partition: Partition,
        machine: Machine,
        codec: RecordCodec,
        clock: Clock,
        failed: Callable[[Shard], None],
        perform: Effect,
        batching: TurnBatching,
    ) -> None:
        self.partition = partition
        self.machine = machine
        self._codec = codec
        self._clock = clock
        self._failed = failed
        self._perform = perform
        self._batching = batching
        self._loop = asyncio.get_running_loop()
        self.timers = Timers(self._loop, self._timer_fired)
        self._next_token: Token = 0
        self._parked: dict[Token, Answer] = {}
        self._uncommitted: deque[list[tuple[Waiter | None, Outcome]]] = deque()
        """For each write that is not committed yet, whom to tell what once it is. Without a waiter, the
        outcome is an effect."""
        self._staged: list[tuple[bytes, bytes | None]] = []
        self._staged_bytes = 0
        self._staged_answers: list[StagedAnswer] = []
        self.is_over = False

    @property
    def timer_count(self) -> int:
        return len(self.timers)

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    def start(self) -> None:
        self._carry_out(self.machine.resume(self._clock.wall_ms()), None)

    def submit(self, command: object) -> Outcome | Answer:
        """The outcome of a command, or a future if something has to be stored or waited for."""
        if self._staged and not self.write_staged():
            return NotCoordinator(self.partition.topic_partition)
        token = self._next_token = self._next_token + 1
        decision = self.machine.decide(command, self._clock.wall_ms(), token)
        return self._carry_out(decision, token)

    def _carry_out(self, decision: Decision[object], token: Token | None) -> Outcome | Answer:
        outcome: Outcome | None = decision.error if decision.error is not None else decision.response
        producer, marker, encoded = decision.producer, decision.marker, None
        if decision.records or marker is not None:
            try:
                encoded = self._encode(decision)
            except RecordsTooLarge as error:
                return self._refuse(decision, error)
            if token is not None and not self.takes_records:
                # Nobody knows when the records could be committed, so the client has to come back later.
                return self._refuse(decision, CoordinatorNotAvailable("too few replicas are in sync"))
        apply = self.machine.apply
        for record in decision.records:
            apply(record if producer is None else TransactionalRecord(producer.producer_id, record))
        if marker is not None:
            apply(TransactionEnded(marker.producer_id, marker.is_commit))
        for unstored in decision.unstored:
            apply(unstored)
        if encoded is not None and not self._write(encoded, producer, marker):
            return NotCoordinator(self.partition.topic_partition)
        if decision.timers:
            self.timers.change(decision.timers)
        for effect in decision.effects:
            self._perform_when_committed(effect)
        answer: Answer | None = None
        if token is not None and (outcome is None or self._uncommitted):
            answer = self._loop.create_future()
            if outcome is None:
                self._parked[token] = answer
            else:
                self._answer(answer, outcome)
        for reply in decision.replies:
            waiting = self._parked.pop(reply.token, None)
            if waiting is not None:
                self._answer(waiting, reply.outcome)
        return outcome if answer is None else answer

    def _perform_when_committed(self, effect: object) -> None:
        if self._uncommitted:
            self._uncommitted[-1].append((None, effect))
        else:
            self._perform(self, effect)

    def _answer(self, answer: Answer, outcome: Outcome) -> None:
        if self._uncommitted:
            self._uncommitted[-1].append((answer, outcome))
        elif not answer.done():
            answer.set_result(outcome)

    def _timer_fired(self, command: object) -> None:
        if not self.is_over and self.write_staged():
            self._carry_out(self.machine.decide(command, self._clock.wall_ms(), 0), None)

    def _refuse(self, decision: Decision[object], error: MillraceError) -> Outcome:
        log.warning("%s: a decision cannot be stored: %s", self.partition.topic_partition, error)
        if self.machine.has_soft_state and (decision.replies or decision.timers):
            # Soft state has moved on with the decision, so the machine has to be loaded again.
            self._loop.call_soon(self._failed, self)
        return error

    # Records that were applied before they are written.

    @property
    def takes_records(self) -> bool:
        """Whether enough replicas are in sync to commit what is stored now. Otherwise nothing may be
        staged."""
        partition = self.partition
        return partition.leadership is None or partition.has_enough_replicas

    @property
    def batch_bytes_max(self) -> int:
        """How much the records of one command may take, each with its RECORD_OVERHEAD."""
        return self.partition.log.config.max_message_bytes - HEADER_SIZE

    @property
    def staged_count(self) -> int:
        """How many commands have staged records."""
        return len(self._staged_answers)

    def stage(self, records: list[tuple[bytes, bytes | None]], size_bytes: int, answer: StagedAnswer) -> None:
        """Store records that the machine has applied, now or with others of this turn of the loop."""
        if self._staged and self._staged_bytes + size_bytes > self.batch_bytes_max:
            self.write_staged()
            if self.is_over:
                answer.stored(NotCoordinator(self.partition.topic_partition))
                return
        self._staged += records
        self._staged_bytes += size_bytes
        self._staged_answers.append(answer)
        batching = self._batching
        if not (batching.is_worthwhile or batching.is_time_to_try()):
            self.write_staged()
        elif len(self._staged_answers) == 1:
            batching.at_end_of_turn(self._loop, self.write_staged)

    def write_staged(self) -> bool:
        """Write what is staged, as one batch; False if that failed, which ends this shard."""
        records, answers = self._staged, self._staged_answers
        if not records:
            return True
        self._staged, self._staged_answers, self._staged_bytes = [], [], 0
        if len(answers) > 1:
            self._batching.came_together(len(answers))
        now_ms = self._clock.wall_ms()
        try:
            batch = memoryview(build_plain_batch(records, now_ms))
            last_offset = self.partition.append(batch, now_ms).last_offset
            if self._uncommitted or self.partition.log.high_watermark <= last_offset:
                self._await_commit(last_offset)
        except Exception as error:
            # Expected or a bug: the machine has seen what the log may not have, and clients wait.
            is_bug = not isinstance(error, MillraceError)
            log.error(
                "%s: staged records could not be stored: %s",
                self.partition.topic_partition,
                error,
                exc_info=is_bug,
            )
            try:
                self._failed(self)
            finally:
                tell(answers, NotCoordinator(self.partition.topic_partition))
            return False
        if self._uncommitted:
            self._uncommitted[-1].append((JointAnswer(answers, self._loop), None))
        else:
            tell(answers, None)
        return True

    # Writing.

    def _encode(self, decision: Decision[object]) -> list[list[tuple[bytes, bytes | None]]]:
        """The records as bytes, in pieces that each fit into a batch; one piece if they belong together."""
        encode = self._codec.encode
        size_max = self.batch_bytes_max
        pieces: list[list[tuple[bytes, bytes | None]]] = [[]]
        size = 0
        for record in decision.records:
            encoded = encode(record)
            needed = len(encoded[0]) + len(encoded[1] or b"") + RECORD_OVERHEAD
            if size + needed > size_max:
                if decision.is_atomic or needed > size_max:
                    raise RecordsTooLarge(size + needed, size_bytes_max=size_max)
                pieces.append([])
                size = 0
            size += needed
            pieces[-1].append(encoded)
        return pieces if decision.records else []

    def _write(
        self,
        pieces: list[list[tuple[bytes, bytes | None]]],
        producer: Producer | None,
        marker: EndMarker | None,
    ) -> bool:
        """Append what was applied; False if that failed, which ends this shard."""
        now_ms = self._clock.wall_ms()
        try:
            last_offset = -1
            for piece in pieces:
                if producer is None:
                    batch = memoryview(build_plain_batch(piece, now_ms))
                    last_offset = self.partition.append(batch, now_ms).last_offset
                else:
                    last_offset = self._append_transactional(piece, producer, now_ms)
            if marker is not None:
                last_offset = self.partition.append_marker(marker, now_ms).last_offset
        except Exception as error:
            # Expected or a bug: the machine has seen what the log may not have.
            is_bug = not isinstance(error, MillraceError)
            place = self.partition.topic_partition
            log.error("%s: a decision could not be stored: %s", place, error, exc_info=is_bug)
            self._failed(self)
            return False
        if self._uncommitted or self.partition.log.high_watermark <= last_offset:
            self._await_commit(last_offset)
        return True

    def _await_commit(self, last_offset: int) -> None:
        """Hold answers back, from now on, until what was written is committed."""
        self._uncommitted.append([])
        self.partition.waiting_produces.add(last_offset + 1, self._commit_ended)

    def _append_transactional(
        self, piece: list[tuple[bytes, bytes | None]], producer: Producer, now_ms: int
    ) -> int:
        batch = build_batch(
            [StoredRecord(at, now_ms, key, value) for at, (key, value) in enumerate(piece)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        return self.partition.append_own(memoryview(bytearray(batch)), now_ms).last_offset

    def _commit_ended(self, is_there: bool) -> None:
        if self.is_over:
            return
        if not is_there:
            self._failed(self)
            return
        for answer, outcome in self._uncommitted.popleft():
            if answer is None:
                try:
                    self._perform(self, outcome)
                except Exception:
                    # The effect has a bug; those behind it wait for the same commit.
                    log.exception("%s: an effect failed", self.partition.topic_partition)
            elif not answer.done():
                answer.set_result(outcome)

    def _fail_answers(self, answers: Sequence[tuple[Waiter | None, Outcome]]) -> None:
        for answer, _ in answers:
            if answer is not None and not answer.done():
                answer.set_result(NotCoordinator(self.partition.topic_partition))

    def end(self) -> None:
        """End this shard, because leadership is over or the machine cannot be trusted any more."""
        if self.is_over:
            return
        self.is_over = True
        self.timers.clear()
        for answers in self._uncommitted:
            self._fail_answers(answers)
        self._uncommitted.clear()
        self._fail_answers([(answer, None) for answer in self._parked.values()])
        self._parked.clear()
        if self._staged:
            self._fail_answers([(JointAnswer(self._staged_answers, self._loop), None)])
            self._staged, self._staged_answers = [], []


class Runtime:
    """All partitions of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        *,
        clock: Clock,
        codec: RecordCodec,
        new_machine: Callable[[int], Machine],
        perform: Effect | None = None,
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._clock = clock
        self._codec = codec
        self._new_machine = new_machine
        self._perform = _nothing_to_do if perform is None else perform
        self._batching = TurnBatching()
        self.shards: dict[int, Shard] = {}
        """The partitions that are loaded, by number."""
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._failed_at: dict[int, float] = {}
        self._background: Background | None = None
        self.loads_count = 0
        self.loaded_bytes = 0

    def start(self, background: Background) -> None:
        """Load what this broker leads; `background` holds the loading from now on."""
        self._background = background
        for partition in list(self._partitions.by_name.get(self.topic, {}).values()):
            self.leadership_changed(partition)

    def stop(self) -> None:
        """Answer everybody who waits and load nothing any more."""
        self._background = None
        for index in list(self._loading):
            self._loading.pop(index).cancel()
        for index in list(self.shards):
            self.shards.pop(index).end()

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    @property
    def loading_count(self) -> int:
        return len(self._loading)

    def leadership_changed(self, partition: Partition) -> None:
        """Load or drop a partition that came, went, or has a leader of a new epoch."""
        if partition.topic != self.topic or self._background is None:
            return
        index = partition.index
        is_here = self._leads(partition)
        shard = self.shards.get(index)
        if shard is not None and (not is_here or shard.partition is not partition):
            self._drop(shard)
        if is_here and index not in self.shards and index not in self._loading:
            self._load(partition)

    def submit(self, index: int, command: object) -> Outcome | Answer:
        """Give a command to a partition's machine. Errors are values, because most callers pass them on."""
        shard = self.shards.get(index)
        if shard is not None:
            return shard.submit(command)
        return self.absence(index)

    def absence(self, index: int) -> MillraceError:
        """Why a partition has no machine to ask here."""
        place = TopicPartition(self.topic, index)
        return CoordinatorLoading(place) if index in self._loading else NotCoordinator(place)

    # Loading.

    def _load(self, partition: Partition, delay_s: float = 0.0) -> None:
        assert self._background is not None
        self._loading[partition.index] = self._background.start(
            f"load-{self.topic}", self._load_until_done(partition, delay_s)
        )

    async def _load_until_done(self, partition: Partition, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        while self._leads(partition):
            office = partition.leaders_count
            try:
                machine = await self._read(partition, office)
            except Exception:
                log.exception("%s cannot be loaded, and is tried again", partition.topic_partition)
                await asyncio.sleep(RETRY_S)
                continue
            if partition.leaders_count != office:
                # Another broker led meanwhile, and the log may differ from what was read.
                continue
            del self._loading[partition.index]
            shard = Shard(
                partition,
                machine,
                self._codec,
                self._clock,
                self._shard_failed,
                self._perform,
                self._batching,
            )
            self.shards[partition.index] = shard
            self.loads_count += 1
            shard.start()
            return
        self._loading.pop(partition.index, None)
        current = self._partitions.find(self.topic, partition.index)
        if current is not None:
            # Meanwhile a topic of the same name may have come, or leadership may have come back.
            self.leadership_changed(current)

    async def _read(self, partition: Partition, office: int) -> Machine:
        machine = self._new_machine(partition.index)
        offset = partition.log.log_start_offset
        loop = asyncio.get_running_loop()
        # Records that are not committed yet may still vanish, and must not become state before they are.
        while offset < partition.log.log_end_offset and partition.leaders_count == office:
            # The log is looked up each time: it may have moved to another data directory.
            found = loading.locate(partition.log, offset, partition.log.high_watermark)
            if found is None:
                if partition.log.high_watermark >= partition.log.log_end_offset:
                    # The whole log is committed: compaction has left nothing from here on.
                    break
                await asyncio.sleep(COMMIT_WAIT_S)
                continue
            name = partition.topic_partition
            lane = partition.log.home.volume.lane(Waits.READ, partition.log.path)
            piece = await loop.run_in_executor(lane, loading.read, found, offset, self._codec, name)
            for record in piece.records:
                machine.apply(record)
            offset = piece.next_offset
            self.loaded_bytes += piece.size_bytes
        return machine

    def _shard_failed(self, shard: Shard) -> None:
        if self.shards.get(shard.partition.index) is not shard:
            return
        self._drop(shard)
        if (
            self._background is not None
            and self._leads(shard.partition)
            and shard.partition.index not in self._loading
        ):
            now = asyncio.get_running_loop().time()
            # If a disk takes no writes, wait before the next attempt: loading is a lot of work.
            failed_at = self._failed_at.get(shard.partition.index)
            has_failed_again = failed_at is not None and now - failed_at < 2 * RETRY_S
            self._failed_at[shard.partition.index] = now
            self._load(shard.partition, RETRY_S if has_failed_again else 0.0)

    def _leads(self, partition: Partition) -> bool:
        return partition.is_leader and self._partitions.find(self.topic, partition.index) is partition

    def _drop(self, shard: Shard) -> None:
        del self.shards[shard.partition.index]
        shard.end()


def _nothing_to_do(_shard: Shard, effect: object) -> None:
    raise AssertionError(f"rules without effects decided on the effect {effect}")
