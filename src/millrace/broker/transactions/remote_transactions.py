"""Transactions that reach over several brokers: markers for partitions that others lead, and questions to
coordinators that live elsewhere.

Nothing here outlives its request: whoever asked tries again, and finds the leader that there is by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from millrace.broker.replication.peers import Lane, Peers, PeerUnreachable
from millrace.coordinator.errors import CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.background import StartTask
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.log.errors import CoordinatorFenced, ProducerFenced
from millrace.log.state.transactions import EndMarker
from millrace.metadata.image import NO_LEADER
from millrace.metadata.service import Metadata
from millrace.transactions.commands import DONE, Identity
from millrace.transactions.errors import (
    EpochFenced,
    InvalidTransactionState,
    PartitionNotInTransaction,
    TransactionEnding,
    WrongProducerId,
)
from millrace.transactions.service import TRANSACTION_TOPIC, Transactions
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

log = logging.getLogger(__name__)

MARKERS_VERSION: Final = 2
ADD_VERSION: Final = 5
MARKERS_PER_REQUEST: Final = 500

MarkerReport = Callable[[MillraceError | None], None]
"""Hears what became of a marker: None when it is committed, else why it is not."""


class PartitionGone(MillraceError):
    """There is no such partition, perhaps not any more."""

    def __init__(self, place: TopicPartition) -> None:
        super().__init__(f"there is no {place}")


class MarkerRefused(MillraceError):
    """The partition's leader did not take a marker now."""

    def __init__(self, place: TopicPartition, reason: str) -> None:
        super().__init__(f"{place}: no marker: {reason}")


class _Letter(NamedTuple):
    """A marker for another broker."""

    place: TopicPartition
    marker: EndMarker
    report: MarkerReport


class _Question(NamedTuple):
    """Whether a transaction has partitions, for its coordinator; with `adds` a request to add them."""

    transactional_id: str
    producer: Identity
    places: Sequence[TopicPartition]
    adds: bool


class RemoteTransactions:
    """What this broker asks of others for the sake of transactions."""

    def __init__(
        self,
        metadata: Metadata,
        peers: Peers,
        *,
        node_id: NodeId,
        start_task: StartTask,
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._node_id = node_id
        self._start_task = start_task
        self._letters: dict[NodeId, list[_Letter]] = {}
        """The markers to be sent, by the leader that they are for."""
        self._under_way: dict[NodeId, None] = {}
        """The leaders to which a request is on its way, or about to be."""

    # Markers.

    def leader_elsewhere(self, place: TopicPartition) -> NodeId | None:
        """Who leads a partition, if it is another broker."""
        state = self._metadata.image.partition(*place)
        return None if state is None else self._if_other(state.leader)

    def _if_other(self, leader: NodeId) -> NodeId | None:
        return None if leader in (NO_LEADER, self._node_id) else leader

    def write_marker(
        self, leader_id: NodeId, place: TopicPartition, marker: EndMarker, report: MarkerReport
    ) -> None:
        """Send a marker to the partition's leader, together with others of this turn of the loop, or with
        those that come while an earlier request is under way: the leader handles one after the other."""
        letters = self._letters.get(leader_id)
        if letters is None:
            letters = self._letters[leader_id] = []
            if leader_id not in self._under_way:
                self._under_way[leader_id] = None
                asyncio.get_running_loop().call_soon(self._post, leader_id)
        letters.append(_Letter(place, marker, report))

    def _post(self, leader_id: NodeId) -> None:
        self._start_task(self._deliver_all(leader_id, self._letters.pop(leader_id)))

    async def _deliver_all(self, leader_id: NodeId, letters: Sequence[_Letter]) -> None:
        for first in range(0, len(letters), MARKERS_PER_REQUEST):
            some = letters[first : first + MARKERS_PER_REQUEST]
            for letter, error in zip(some, await self._deliver(leader_id, some), strict=True):
                try:
                    letter.report(error)
                except Exception:
                    # A bug in one report must not keep the others from being made.
                    log.exception("%s: the report of a marker failed", letter.place)
        if leader_id in self._letters:
            self._post(leader_id)
        else:
            del self._under_way[leader_id]

    async def _deliver(self, leader_id: NodeId, letters: Sequence[_Letter]) -> Sequence[MillraceError | None]:
        """Send markers in one request; return what became of each."""
        request = WriteTxnMarkersRequest(markers=[_as_message(letter) for letter in letters])
        try:
            response = await self._peers.call(
                leader_id, ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, request, lane=Lane.MARKERS
            )
        except PeerUnreachable as error:
            return [error] * len(letters)
        except Exception as bug:
            # Whatever it is: these markers are tried again, and those behind them must leave.
            log.exception("markers could not be sent to broker %d", leader_id)
            return [MarkerRefused(letter.place, repr(bug)) for letter in letters]
        codes = [
            partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        ]
        codes += [ErrorCode.UNKNOWN_SERVER_ERROR] * (len(letters) - len(codes))
        return [_marker_error(letter, code) for letter, code in zip(letters, codes, strict=False)]

    # Coordinators.

    def is_elsewhere(self, transactions: Transactions, transactional_id: str) -> bool:
        """Whether another broker coordinates a transactional id."""
        return self._if_other(transactions.topic.leader_of(transactional_id)) is not None

    def ask(
        self,
        transactions: Transactions,
        transactional_id: str,
        producer: Identity,
        places: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Answer:
        """Have another broker's coordinator add the partitions to the transaction, or say whether it has
        them. Its refusals are values, like those of a coordinator here."""
        answer: Answer = asyncio.get_running_loop().create_future()
        question = _Question(transactional_id, producer, places, adds)
        self._start_task(self._ask(transactions, question, answer))
        return answer

    async def _ask(self, transactions: Transactions, question: _Question, answer: Answer) -> None:
        outcome: Outcome = CoordinatorNotAvailable("the coordinator did not answer")
        try:
            outcome = await self._outcome(transactions, question)
        except PeerUnreachable as error:
            outcome = CoordinatorNotAvailable(str(error))
        finally:
            if not answer.done():
                answer.set_result(outcome)

    async def _outcome(self, transactions: Transactions, question: _Question) -> Outcome:
        transactional_id, producer, places, adds = question
        leader = self._if_other(transactions.topic.leader_of(transactional_id))
        if leader is None:
            return NotCoordinator(f"{TRANSACTION_TOPIC}-{transactions.partition_of(transactional_id)}")
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for topic, partition in places:
            topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(partition)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    verify_only=not adds,
                    topics=list(topics.values()),
                )
            ]
        )
        response = await self._peers.call(leader, ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, request)
        codes = [
            result.partition_error_code
            for transaction in response.results_by_transaction
            for topic_result in transaction.topic_results
            for result in topic_result.results_by_partition
        ]
        code = response.error_code or next((code for code in codes if code), 0)
        return DONE if code == 0 else _coordinator_error(question, code)


def _as_message(letter: _Letter) -> WritableTxnMarker:
    place, marker, _ = letter
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transaction_result=marker.is_commit,
        topics=[WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _marker_error(letter: _Letter, code: int) -> MillraceError | None:
    place, marker, _ = letter
    match code:
        case ErrorCode.NONE:
            return None
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return PartitionGone(place)
        case ErrorCode.INVALID_PRODUCER_EPOCH:
            return ProducerFenced(marker.producer_id, epoch=marker.epoch, current_epoch=-1)
        case ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            return CoordinatorFenced(marker.producer_id, epoch=marker.coordinator_epoch, current_epoch=-1)
        case _:
            return MarkerRefused(place, f"error {code}")


def _coordinator_error(question: _Question, code: int) -> MillraceError:
    transactional_id, producer, places, _ = question
    match code:
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return TransactionEnding(transactional_id)
        case ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return WrongProducerId(transactional_id, producer.producer_id)
        case ErrorCode.PRODUCER_FENCED | ErrorCode.INVALID_PRODUCER_EPOCH:
            return EpochFenced(transactional_id, producer.epoch, current=-1)
        case ErrorCode.INVALID_TXN_STATE:
            return InvalidTransactionState(transactional_id, "its coordinator refuses partitions now")
        case ErrorCode.TRANSACTION_ABORTABLE:
            return PartitionNotInTransaction(transactional_id, places[0])
        case _:
            return CoordinatorNotAvailable(f"the coordinator of {transactional_id!r} answers error {code}")
