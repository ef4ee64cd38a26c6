"""Tells every partition of a transaction how it ended, and tries again until all have heard it.

A transaction that is stored as prepared has been decided, so nothing here may give up. A partition that is
gone needs no marker; one whose leader, disk or coordinator cannot take the marker now gets it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.coordinator.runtime import Shard
from millrace.core.ids import TopicPartition
from millrace.log.state.transactions import EndMarker
from millrace.transactions.commands import MarkersWritten, WriteMarkers

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
COMPLETE_RETRY_S: Final = 1.0
"""The time between attempts to store a transaction as complete, once all its markers are written."""

Written = Callable[[bool], None]
"""Called with True when the marker is committed in the partition or no longer needed, and with False when it
has to be tried again."""
WriteMarker = Callable[[TopicPartition, EndMarker, Written], None]


class MarkerSender:
    """Sends the markers of all transactions that this broker has prepared."""

    def __init__(self, write_marker: WriteMarker) -> None:
        self._write_marker = write_marker
        self._is_over = False
        self.retries_count = 0

    def stop(self) -> None:
        self._is_over = True

    def send(self, shard: Shard, effect: WriteMarkers) -> None:
        """Write the markers of one transaction, then tell the shard that it is complete."""
        marker = EndMarker(
            *effect.producer, effect.is_commit, shard.partition.leader_epoch, effect.transaction_version
        )
        missing = dict.fromkeys(effect.partitions)
        if not missing:
            self._complete(shard, effect)
            return
        for partition in effect.partitions:
            self._write(shard, effect, marker, missing, partition)

    def _write(
        self,
        shard: Shard,
        effect: WriteMarkers,
        marker: EndMarker,
        missing: dict[TopicPartition, None],
        partition: TopicPartition,
        pause_s: float = RETRY_S,
    ) -> None:
        if self._is_over or shard.is_over:
            return
        longer_s = min(2 * pause_s, RETRY_S_MAX)
        again = partial(self._write, shard, effect, marker, missing, partition, longer_s)

        def written(is_there: bool) -> None:
            if not is_there:
                self.retries_count += 1
                asyncio.get_running_loop().call_later(pause_s, again)
                return
            missing.pop(partition, None)
            if not missing:
                self._complete(shard, effect)

        self._write_marker(partition, marker, written)

    def _complete(self, shard: Shard, effect: WriteMarkers) -> None:
        if self._is_over or shard.is_over:
            return
        outcome = shard.submit(MarkersWritten(effect.transactional_id, effect.producer))
        if isinstance(outcome, CoordinatorNotAvailable):
            # Too few replicas are in sync to store that, and nobody else would tell the shard again.
            asyncio.get_running_loop().call_later(COMPLETE_RETRY_S, self._complete, shard, effect)
