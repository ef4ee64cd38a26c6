"""Puts the markers of ended transactions where they belong: into a partition's log, and for
`__consumer_offsets` through the groups that have offsets waiting for the marker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from millrace.broker.transactions.remote_transactions import MarkerReport, PartitionGone
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.groups.commands import EndOffsetTransaction
from millrace.groups.service import OFFSETS_TOPIC, Groups
from millrace.log.errors import CoordinatorFenced, ProducerFenced
from millrace.log.state.transactions import EndMarker
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)


class NotHere(MillraceError):
    """The partition exists, but this broker does not lead it."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"this broker does not lead {partition}")


class OtherBrokers(Protocol):
    """The way to partitions that other brokers lead."""

    def leader_elsewhere(self, place: TopicPartition) -> NodeId | None: ...
    def write_marker(
        self, leader_id: NodeId, place: TopicPartition, marker: EndMarker, report: MarkerReport
    ) -> None: ...


class Markers:
    """Writes markers, for coordinators here and on other brokers."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        groups: Groups,
        clock: Clock,
        others: OtherBrokers | None = None,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._groups = groups
        self._clock = clock
        self._others = others

    def write_for_coordinator(
        self, place: TopicPartition, marker: EndMarker, written: Callable[[bool], None]
    ) -> None:
        """Write a marker wherever its partition is led. `written` hears whether that is done, as it also is
        where the partition is gone or knows of a newer epoch."""

        def report(error: MillraceError | None) -> None:
            is_done = error is None or isinstance(error, PartitionGone | ProducerFenced | CoordinatorFenced)
            if error is not None:
                # A marker may be tried again many times a second, which only those hear of who debug.
                level = logging.INFO if is_done else logging.DEBUG
                log.log(level, "%s: no marker for producer %d: %s", place, marker.producer_id, error)
            written(is_done)

        leader_id = None if self._others is None else self._others.leader_elsewhere(place)
        if self._others is not None and leader_id is not None:
            self._others.write_marker(leader_id, place, marker, report)
        else:
            self.write(place, marker, report)

    def write_for_peer(self, place: TopicPartition, marker: EndMarker, report: MarkerReport) -> None:
        """As `write`, for a coordinator on another broker: it hears at once of a partition in which nothing
        can be committed, because its connection carries no other answer before this one."""
        partition = self._partitions.find(*place)
        try:
            if partition is not None and partition.is_leader:
                partition.refuse_if_too_few_replicas()
        except MillraceError as error:
            report(error)
            return
        self.write(place, marker, report)

    def write(self, place: TopicPartition, marker: EndMarker, report: MarkerReport) -> None:
        """Write a marker here, and report when it is committed."""
        partition = self._partitions.find(*place)
        if partition is None or not partition.is_leader:
            is_known = self._metadata.image.partition(*place) is not None
            report(NotHere(place) if is_known else PartitionGone(place))
            return
        try:
            if partition.needs_marker(marker):
                if place.topic == OFFSETS_TOPIC:
                    self._write_to_groups(place, marker, report)
                    return
                partition.append_marker(marker, self._clock.wall_ms())
        except MillraceError as error:
            report(error)
            return
        # A marker that is there already, from an earlier attempt, also counts only when it is committed.
        end_offset = partition.log.log_end_offset
        if partition.log.high_watermark >= end_offset:
            report(None)
            return
        partition.waiting_produces.add(
            end_offset, lambda is_there: report(None if is_there else NotHere(place))
        )

    def _write_to_groups(self, place: TopicPartition, marker: EndMarker, report: MarkerReport) -> None:
        outcome = self._groups.runtime.submit(place.partition, EndOffsetTransaction(marker))
        if isinstance(outcome, asyncio.Future):
            outcome.add_done_callback(lambda done: report(_error_in(done.result())))
        else:
            report(_error_in(outcome))


def _error_in(outcome: object) -> MillraceError | None:
    return outcome if isinstance(outcome, MillraceError) else None
