"""A transactional producer's dealings with its coordinator and the leaders, one transaction after the other.

It speaks both protocols of Kafka. With `is_new` every transaction has the next epoch, and a Produce adds its
partition by itself; in the old protocol a request of its own adds partitions, and the epoch stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.client.errors import ConnectionFailed
from millrace.core.errors import MillraceError
from millrace.sim.clients.client import GROUP, TRANSACTION, Client, ErrorAnswer
from millrace.sim.clients.producer import produce_request, result_of
from millrace.sim.history import Acked, Sent, TransactionEnded
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from millrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from millrace.wire.records import Record, build_batch
from millrace.wire.schema_fields import Message

ATTEMPTS_MAX: Final = 60
"""After so many attempts at one step the producer gives the transaction up, as a client's delivery timeout
does."""
_COORDINATOR_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

Place = tuple[str, int]


class TransactionBroken(MillraceError):
    """The transaction cannot go on; beginning anew as the same transactional id ends it."""


class TransactionalSession:
    """One transactional id in the hands of one program."""

    def __init__(self, client: Client, transactional_id: str, *, is_new: bool, timeout_ms: int) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.is_new = is_new
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.number = 0
        """The number of the present transaction, or of the last one."""
        self._sequences: dict[Place, int] = {}
        self._added: dict[Place, None] = {}

    async def begin_anew(self) -> None:
        """Get an identity, which aborts what an earlier one left open."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        while True:
            try:
                response: InitProducerIdResponse = await self._ask(ApiKey.INIT_PRODUCER_ID, 5, request)
            except (ConnectionFailed, ErrorAnswer):
                await self.client.pause()
                continue
            if not response.error_code:
                break
            self._look_at(response.error_code)
            await self.client.pause()
        self._take_identity(response.producer_id, response.producer_epoch)

    def begin(self) -> None:
        self.number += 1
        self._added.clear()

    async def write(self, place: Place, values: Sequence[str]) -> None:
        """Write one batch into the transaction; raises TransactionBroken if that cannot be done."""
        client = self.client
        topic, partition = place
        for value in values:
            client.note(
                Sent(
                    at=client.now(),
                    producer=self.transactional_id,
                    topic=topic,
                    partition=partition,
                    value=value,
                    transaction=self.number,
                )
            )
        if not self.is_new and place not in self._added:
            await self._add_partition(place)
        sequence = self._sequences.get(place, 0)
        for _ in range(ATTEMPTS_MAX):
            try:
                offset = await self.produce_once(place, values, sequence)
            except ConnectionFailed:
                client.forget_leader(topic)
                await client.pause()
                continue
            except ErrorAnswer as error:
                if not error.code.retriable:
                    raise TransactionBroken(str(error)) from None
                client.forget_leader(topic)
                await client.pause()
                continue
            self._sequences[place] = sequence + len(values)
            self._added[place] = None
            self._note_acks(place, values, offset)
            return
        raise TransactionBroken(f"no answer to a batch for {topic}-{partition}")

    def _note_acks(self, place: Place, values: Sequence[str], offset: int) -> None:
        client = self.client
        for at, value in enumerate(values):
            client.note(
                Acked(
                    at=client.now(),
                    producer=self.transactional_id,
                    topic=place[0],
                    partition=place[1],
                    value=value,
                    offset=offset + at if offset >= 0 else -1,
                    transaction=self.number,
                )
            )

    async def produce_once(self, place: Place, values: Sequence[str], sequence: int) -> int:
        """Make one attempt; return the base offset or raise ErrorAnswer."""
        client = self.client
        now_ms = client.wall_ms()
        batch = build_batch(
            [Record(at, now_ms, None, value.encode()) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        address = await client.leader(*place)
        request = produce_request(*place, batch, transactional_id=self.transactional_id)
        version = 12 if self.is_new else 11
        asked_at = client.now()
        result = result_of(await client.ask(address, ApiKey.PRODUCE, version, request))
        if result.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise ErrorAnswer("Produce", result.error_code)
        client.served(address, asked_at, "Produce")
        return result.base_offset

    def next_sequence(self, place: Place) -> int:
        return self._sequences.get(place, 0)

    def skip_sequence(self, place: Place) -> None:
        """Another batch of this producer was stored meanwhile."""
        self._sequences[place] = self._sequences.get(place, 0) + 1

    async def _add_partition(self, place: Place) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])],
        )
        for _ in range(ATTEMPTS_MAX):
            try:
                response: AddPartitionsToTxnResponse = await self._ask(
                    ApiKey.ADD_PARTITIONS_TO_TXN, 3, request
                )
            except (ConnectionFailed, ErrorAnswer):
                await self.client.pause()
                continue
            (topic,) = response.results_by_topic_v3_and_below
            (result,) = topic.results_by_partition
            if not result.partition_error_code:
                return
            self._check(result.partition_error_code)
            await self.client.pause()
        raise TransactionBroken("a partition could not be added")

    async def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Store how far a group has read, as a part of the transaction."""
        if not self.is_new:
            await self._add_offsets(group)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=entries) for name, entries in topics.items()
            ],
        )
        for _ in range(ATTEMPTS_MAX):
            try:
                response: TxnOffsetCommitResponse = await self.client.ask_coordinator(
                    GROUP, group, ApiKey.TXN_OFFSET_COMMIT, 5 if self.is_new else 3, request
                )
            except (ConnectionFailed, ErrorAnswer):
                await self.client.pause()
                continue
            codes = [each.error_code for topic in response.topics for each in topic.partitions]
            if not any(codes):
                return
            for code in codes:
                if code in _COORDINATOR_MOVED:
                    self.client.forget_coordinator(GROUP, group)
                self._check(code)
            await self.client.pause()
        raise TransactionBroken("offsets could not be added")

    async def _add_offsets(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        for _ in range(ATTEMPTS_MAX):
            try:
                response: AddOffsetsToTxnResponse = await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
            except (ConnectionFailed, ErrorAnswer):
                await self.client.pause()
                continue
            if not response.error_code:
                return
            self._check(response.error_code)
            await self.client.pause()
        raise TransactionBroken("a group's offsets could not be added")

    async def end(self, *, commit: bool) -> str:
        """End the transaction and note how; raises TransactionBroken if the identity is of no use
        afterwards."""
        was_unanswered = False
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        while True:
            try:
                response: EndTxnResponse = await self._ask(ApiKey.END_TXN, 5 if self.is_new else 4, request)
            except ConnectionFailed:
                was_unanswered = True
                await self.client.pause()
                continue
            except ErrorAnswer:
                await self.client.pause()
                continue
            code = ErrorCode(response.error_code)
            if code == ErrorCode.NONE:
                break
            if code.retriable:
                self._look_at(code)
                await self.client.pause()
                continue
            # Somebody else ended the transaction. If an answer was lost, nobody knows whether this commit
            # came before that.
            self.note_end("unknown" if commit and was_unanswered else "abort")
            raise TransactionBroken(f"EndTxn: {code.name}")
        self.note_end("commit" if commit else "abort")
        if self.is_new:
            self._take_identity(response.producer_id, response.producer_epoch)
        return "commit" if commit else "abort"

    def note_end(self, outcome: str) -> None:
        self.client.note(
            TransactionEnded(
                at=self.client.now(),
                producer=self.transactional_id,
                transaction=self.number,
                outcome=outcome,
            )
        )

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def _ask(self, api_key: int, version: int, request: Message) -> Any:
        return await self.client.ask_coordinator(
            TRANSACTION, self.transactional_id, api_key, version, request
        )

    def _check(self, code: int) -> None:
        """Raise TransactionBroken unless it is worth trying again."""
        self._look_at(code)
        if code and not ErrorCode(code).retriable:
            raise TransactionBroken(ErrorCode(code).name)

    def _look_at(self, code: int) -> None:
        if code in _COORDINATOR_MOVED:
            self.client.forget_coordinator(TRANSACTION, self.transactional_id)
