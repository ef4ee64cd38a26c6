"""Small batches of one turn of the loop, written together.

With many connections, a turn brings many requests of a few hundred bytes each, and the write into the page
cache would be the dearest step of each. So a small batch is checked and gets its offset at once, but is
written with all others that the turn brings for its partition; then they are answered. Whether that is worth
its while is judged as everywhere (`core/turn_batching.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

from millrace.core.errors import MillraceError
from millrace.core.turn_batching import TurnBatching
from millrace.log.partition.appending import STAGED
from millrace.log.partition.staging import StagedBatch

if TYPE_CHECKING:
    from millrace.broker.handlers.produce.answers import ProduceAnswer
    from millrace.broker.network.wakeups import Wakeups
    from millrace.replica.partition import Partition

logger: Final = logging.getLogger(__name__)

STAGED_BYTES_MAX: Final = 8 * 1024
"""Larger batches are written at once: copying them would cost as much as the write saves."""


class Staging:
    """The partitions that have staged batches."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.batching = TurnBatching()
        self._partitions: dict[Partition, None] = {}

    def append(self, answer: ProduceAnswer, partition: Partition, records: memoryview, now_ms: int) -> None:
        """Append to a partition that commits what is written; the answer leaves at the end of this turn, or
        now."""
        answer.connection.take_place(answer)
        try:
            appended = partition.append(records, now_ms, token=answer)
        except MillraceError as error:
            partition.stats.produces_failed += 1
            answer.refuse(error, records)
            return
        if appended is not STAGED:
            assert partition.log.high_watermark > appended.last_offset, partition.topic_partition
            answer.succeed(appended.base_offset, appended.log_append_time_ms)
            return
        partitions = self._partitions
        if partition not in partitions:
            partition.answer_staged = self._answer
            if not partitions:
                self.batching.at_end_of_turn(answer.connection.loop, self._write_all)
            partitions[partition] = None

    def _write_all(self) -> None:
        partitions, self._partitions = self._partitions, {}
        for partition in partitions:
            # It raises nothing: one partition's trouble leaves no other's requests unanswered.
            partition.log.write_staged()

    def _answer(self, partition: Partition, staged: list[StagedBatch], error: MillraceError | None) -> None:
        self.batching.came_together(len(staged))
        # The same order as for a batch that was written at once.
        self._wakeups.answer_first()
        has_append_time = partition.log.config.timestamp_log_append
        for data, base_offset, _, timestamp_ms, _, _, _, token in staged:
            answer = cast("ProduceAnswer", token)
            try:
                if error is None:
                    answer.succeed(base_offset, timestamp_ms if has_append_time else -1)
                else:
                    answer.refuse(error, memoryview(data))
            except Exception:
                # A bug on that connection: the others wait for their answers.
                logger.exception("%s: the answer to a staged batch", partition.topic_partition)
