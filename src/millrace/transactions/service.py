"""The face of transactions to the rest of the broker: where a transactional id lives, its commands, and the
markers that end transactions.

The shell that finds, creates and asks is `coordinator/coordinator.py`. This module adds fresh producer ids
for commands that need one, and the sender of markers, which carries out what is stored as prepared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.coordinator.coordinator import Coordinator
from millrace.coordinator.internal_topic import InternalTopic
from millrace.coordinator.runtime import Answer, Outcome, Runtime, Shard
from millrace.core.background import Background
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions
from millrace.transactions.commands import (
    EndTransaction,
    Identity,
    InitProducer,
    TransactionSettings,
    VerifyPartitions,
    WriteMarkers,
)
from millrace.transactions.errors import InvalidTransactionalId
from millrace.transactions.machine import TransactionMachine
from millrace.transactions.markers import MarkerSender, WriteMarker
from millrace.transactions.records import TransactionRecordCodec
from millrace.transactions.transaction import Transaction

TRANSACTION_TOPIC: Final = "__transaction_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionTopic:
    """How `__transaction_state` is created."""

    partition_count: int = 50
    replication_factor: int = 3
    min_insync_replicas: int = 2
    segment_bytes: int = 104_857_600

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(self.min_insync_replicas, replicas)),
            "segment.bytes": str(self.segment_bytes),
            "unclean.leader.election.enable": "false",
        }


class Transactions:
    """All transactional ids of the cluster that this broker coordinates."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        settings: TransactionSettings,
        topic: TransactionTopic,
        next_producer_id: Callable[[], Awaitable[int]],
        write_marker: WriteMarker,
    ) -> None:
        self.settings = settings
        self._next_producer_id = next_producer_id
        self._markers = MarkerSender(write_marker)
        self.topic = InternalTopic(TRANSACTION_TOPIC, metadata, topic)
        self.runtime = Runtime(
            TRANSACTION_TOPIC,
            partitions,
            clock=clock,
            codec=TransactionRecordCodec(),
            new_machine=lambda _: TransactionMachine(settings),
            perform=self._perform,
        )
        self._coordinator = Coordinator(self.topic, self.runtime, TransactionMachine)

    # Life.

    def start(self, background: Background) -> None:
        """Load this broker's partitions, and carry out prepared transactions, until `stop`."""
        self._coordinator.start(background)

    def stop(self) -> None:
        self._markers.stop()
        self._coordinator.stop()

    def _perform(self, shard: Shard, effect: object) -> None:
        assert isinstance(effect, WriteMarkers), effect
        self._markers.send(shard, effect)

    # Commands.

    def partition_of(self, transactional_id: str) -> int | None:
        """The partition that holds a transactional id; None while there is no such topic."""
        return self.topic.partition_of(transactional_id)

    def submit(self, transactional_id: str, command: object) -> Outcome | Answer:
        """Give a command to the partition that holds a transactional id. Errors are values."""
        return self._coordinator.submit(transactional_id, command)

    async def init_producer(
        self, transactional_id: str, *, timeout_ms: int, expected: Identity | None
    ) -> Outcome:
        """The identity under which a producer begins; this aborts what it had open before."""
        if not transactional_id:
            return InvalidTransactionalId()
        machine = self.machine_of(transactional_id)
        if isinstance(machine, MillraceError):
            return machine
        command = InitProducer(
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            expected=expected,
            fresh_producer_id=await self._fresh_producer_id(machine, transactional_id),
        )
        return await outcome_of(self.submit(transactional_id, command))

    async def end(
        self, transactional_id: str, producer: Identity, *, is_commit: bool, transaction_version: int
    ) -> Outcome:
        """Commit or abort; returns the identity for the producer's next transaction."""
        machine = self.machine_of(transactional_id)
        if isinstance(machine, MillraceError):
            return machine
        transaction = machine.transactions.get(transactional_id)
        fresh = None
        if transaction is not None and transaction.is_exhausted:
            fresh = await self._fresh_producer_id(machine, transactional_id)
        command = EndTransaction(
            transactional_id=transactional_id,
            producer=producer,
            is_commit=is_commit,
            transaction_version=transaction_version,
            fresh_producer_id=fresh,
        )
        return await outcome_of(self.submit(transactional_id, command))

    async def _fresh_producer_id(self, machine: TransactionMachine, transactional_id: str) -> int | None:
        if not machine.needs_fresh_producer_id(transactional_id):
            return None
        return await self._next_producer_id()

    def verify(self, command: VerifyPartitions) -> MillraceError | None:
        """Why these partitions may not be written to at this moment, or None."""
        machine = self.machine_of(command.transactional_id)
        return machine if isinstance(machine, MillraceError) else machine.verify(command)

    # What there is.

    def machine_of(self, transactional_id: str) -> TransactionMachine | MillraceError:
        """The machine that holds a transactional id, or why it cannot be asked here."""
        return self._coordinator.machine_of(transactional_id)

    def find(self, transactional_id: str) -> Transaction | MillraceError | None:
        machine = self.machine_of(transactional_id)
        if isinstance(machine, MillraceError):
            return machine
        return machine.transactions.get(transactional_id)

    def all(self) -> Iterator[Transaction]:
        """The transactions of all partitions that are loaded here."""
        for machine in self._coordinator.machines():
            yield from machine.transactions.values()


async def outcome_of(outcome: Outcome | Answer) -> Outcome:
    return await outcome if isinstance(outcome, asyncio.Future) else outcome
