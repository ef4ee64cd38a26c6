"""Which transactional batches may be appended, as the coordinator says, here or on another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from millrace.broker.handlers.produce.transaction_gate import TransactionGate, copied
from millrace.broker.transactions.remote_transactions import RemoteTransactions
from millrace.coordinator.errors import CoordinatorNotAvailable, NotCoordinator
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.errors import OutOfOrderSequence
from millrace.log.state.transactions import EndMarker
from millrace.replica.partition import Partition
from millrace.transactions.commands import Identity
from millrace.transactions.errors import EpochFenced, PartitionNotInTransaction, TransactionEnding
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.produce_codec import TopicRecords
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.transactions.producers import NAME, add, init
from tests.unit.log.support import batch_of

VERIFIES, ADDS = 11, 12


class Elsewhere:
    """A coordinator on another broker, which answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Identity, Sequence[TopicPartition], bool]] = []
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def is_elsewhere(self, _transactions: object, _name: str) -> bool:
        return True

    def ask(
        self,
        _transactions: object,
        _name: str,
        producer: Identity,
        places: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> asyncio.Future[object]:
        self.asked.append((producer, places, adds))
        return self.answer


class Bench:
    """A producer with a transactional id, and the partition that it writes to."""

    def __init__(self, broker: Broker) -> None:
        broker.create_topic("orders", 2)
        broker.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]), 4)
        self.broker = broker
        self.producer = Identity(*init(broker))
        found = broker.services.partitions.find("orders", 0)
        assert found is not None
        self.partition: Partition = found

    def gate(self, version: int, others: Elsewhere | None = None) -> TransactionGate:
        remote = cast("RemoteTransactions | None", others)
        return TransactionGate(self.broker.transactions, NAME, version, remote)

    def records(self, sequence: int = 0, *, transactional: bool = True) -> memoryview:
        producer_id, epoch = self.producer
        return batch_of(
            b"v", producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=transactional
        )

    def enter(self, gate: TransactionGate, records: memoryview) -> list[Any]:
        topics: list[TopicRecords] = [("orders", None, [(0, records)])]
        return gate.enter(self.broker.services.partitions, topics)

    async def append(self, gate: TransactionGate, records: memoryview) -> int:
        """The offset that it got."""
        for wait in self.enter(gate, records):
            await wait
        return gate.append(self.partition, records, NOW_MS).base_offset

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.broker.run(work())


@pytest.fixture
def bench(broker: Broker) -> Bench:
    return Bench(broker)


def test_a_batch_for_a_partition_that_was_not_added_is_refused_by_versions_that_only_verify(
    bench: Bench,
) -> None:
    async def work() -> None:
        with pytest.raises(MillraceError) as refused:
            await bench.append(bench.gate(VERIFIES), bench.records())
        assert bench.gate(VERIFIES).code_of(refused.value) != ErrorCode.NONE

    bench.run(work)
    assert bench.partition.log.log_end_offset == 0


def test_a_batch_for_a_partition_that_was_added_before_is_appended(bench: Bench) -> None:
    assert add(bench.broker, bench.producer, 4) == [ErrorCode.NONE]

    async def work() -> None:
        assert await bench.append(bench.gate(VERIFIES), bench.records()) == 0
        assert await bench.append(bench.gate(VERIFIES), bench.records(1)) == 1

    bench.run(work)
    assert bench.partition.has_open_transaction(*bench.producer)


def test_newer_versions_add_the_partition_with_the_first_batch_and_ask_nobody_afterwards(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*asked: object) -> None:
        raise AssertionError(asked)

    async def work() -> None:
        assert await bench.append(bench.gate(ADDS), bench.records()) == 0
        with monkeypatch.context() as patched:
            patched.setattr(bench.broker.transactions, "submit", nobody)
            patched.setattr(bench.broker.transactions, "verify", nobody)
            assert await bench.append(bench.gate(ADDS), bench.records(1)) == 1

    bench.run(work)
    transaction = bench.broker.transactions.find(NAME)
    assert TopicPartition("orders", 0) in transaction.partitions  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [VERIFIES, ADDS])
def test_nobody_writes_into_an_open_transaction_in_another_name(bench: Bench, version: int) -> None:
    """Fault S14: producer ids are numbers in a row. Who guesses one has to show its transactional id as
    well, which permissions are for."""

    async def work() -> None:
        assert await bench.append(bench.gate(ADDS), bench.records()) == 0
        stranger = TransactionGate(bench.broker.transactions, "stranger", version)
        with pytest.raises(MillraceError) as refused:
            await bench.append(stranger, bench.records(1))
        assert stranger.code_of(refused.value) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await bench.append(bench.gate(ADDS), bench.records(1)) == 1

    bench.run(work)
    assert bench.partition.log.log_end_offset == 2


def test_a_new_leader_asks_once_whose_the_open_transaction_is(bench: Bench) -> None:
    async def work() -> None:
        assert await bench.append(bench.gate(ADDS), bench.records()) == 0
        bench.partition.transaction_owners.clear()
        others = Elsewhere()
        gate = bench.gate(ADDS, others)
        assert bench.enter(gate, bench.records(1)) == [others.answer]
        others.answer.set_result(None)
        assert gate.append(bench.partition, bench.records(1), NOW_MS).base_offset == 1
        assert bench.enter(gate, bench.records(2)) == []
        bench.partition.append_marker(EndMarker(*bench.producer, True, 0), NOW_MS)
        assert bench.partition.transaction_owners == {}

    bench.run(work)


def test_a_batch_outside_of_transactions_is_judged_by_the_log_alone(bench: Bench) -> None:
    async def work() -> None:
        records = bench.records(transactional=False)
        assert bench.enter(bench.gate(ADDS), records) == []
        assert bench.gate(ADDS).append(bench.partition, records, NOW_MS).base_offset == 0

    bench.run(work)


def test_a_batch_that_overtook_the_first_of_its_transaction_has_to_come_again(bench: Bench) -> None:
    async def work() -> None:
        with pytest.raises(OutOfOrderSequence):
            await bench.append(bench.gate(ADDS), bench.records(3))
        assert await bench.append(bench.gate(ADDS), bench.records(0)) == 0

    bench.run(work)


@pytest.mark.parametrize("version, adds", [(VERIFIES, False), (ADDS, True)])
def test_a_coordinator_elsewhere_is_asked_once_and_its_word_counts(
    bench: Bench, version: int, adds: bool
) -> None:
    async def work() -> None:
        others = Elsewhere()
        gate = bench.gate(version, others)
        assert bench.enter(gate, bench.records()) == [others.answer]
        assert others.asked == [(bench.producer, [TopicPartition("orders", 0)], adds)]
        others.answer.set_result(None)
        assert gate.append(bench.partition, bench.records(), NOW_MS).base_offset == 0

    bench.run(work)


def test_the_refusal_of_a_coordinator_elsewhere_is_that_of_the_batch(bench: Bench) -> None:
    async def work() -> None:
        others = Elsewhere()
        gate = bench.gate(ADDS, others)
        bench.enter(gate, bench.records())
        others.answer.set_result(TransactionEnding(NAME))
        with pytest.raises(TransactionEnding):
            gate.append(bench.partition, bench.records(), NOW_MS)

    bench.run(work)
    assert bench.partition.log.log_end_offset == 0


def test_a_marker_that_came_after_the_question_makes_its_answer_worthless(bench: Bench) -> None:
    async def work() -> None:
        others = Elsewhere()
        gate = bench.gate(ADDS, others)
        bench.enter(gate, bench.records())
        others.answer.set_result(None)
        bench.partition.append_marker(EndMarker(*bench.producer, True, 0), NOW_MS)
        with pytest.raises(CoordinatorNotAvailable):
            gate.append(bench.partition, bench.records(), NOW_MS)

    bench.run(work)


@pytest.mark.parametrize(
    "error, version, code",
    [
        (CoordinatorNotAvailable("away"), ADDS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (NotCoordinator("elsewhere"), ADDS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (TransactionEnding(NAME), 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (TransactionEnding(NAME), 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (EpochFenced(NAME, 1, current=2), ADDS, ErrorCode.INVALID_PRODUCER_EPOCH),
        (PartitionNotInTransaction(NAME, "orders-0"), 10, ErrorCode.INVALID_TXN_STATE),
        (PartitionNotInTransaction(NAME, "orders-0"), 11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_clients_are_told_errors_that_their_version_knows(
    bench: Bench, error: MillraceError, version: int, code: int
) -> None:
    assert bench.gate(version).code_of(error) == code


def test_a_copied_request_has_records_of_its_own() -> None:
    buffer = bytearray(b"records")
    ((topic, topic_id, wanted),) = copied([("orders", None, [(0, memoryview(buffer)), (1, None)])])
    buffer[:] = b"XXXXXXX"
    assert (topic, topic_id) == ("orders", None)
    assert wanted[1] == (1, None)
    assert wanted[0][1] is not None
    assert bytes(wanted[0][1]) == b"records"
