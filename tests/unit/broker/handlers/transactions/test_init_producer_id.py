"""InitProducerId: identities that nobody else has."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from tests.unit.broker.handlers.broker import Broker


def idempotent(producer_id: int = -1, epoch: int = -1) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=epoch)


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(broker: Broker, version: int) -> None:
    responses = [broker.ask(idempotent(), version) for _ in range(5)]
    assert [response.error_code for response in responses] == [ErrorCode.NONE] * 5
    assert len({response.producer_id for response in responses}) == 5
    assert {response.producer_epoch for response in responses} == {0}


def test_ids_come_from_blocks_and_one_commit_serves_many(broker: Broker) -> None:
    broker.ask(idempotent(), 5)
    commits = broker.store.commit_count
    for _ in range(100):
        broker.ask(idempotent(), 5)
    assert broker.store.commit_count == commits


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_starts_over_gets_a_new_id(broker: Broker, version: int) -> None:
    # Kafka does the same: a new id needs no agreement with anybody about the old one's epochs.
    first = broker.ask(idempotent(), version)
    for epoch in (0, 3, 32767):
        again = broker.ask(idempotent(first.producer_id, epoch), version)
        assert (again.error_code, again.producer_epoch) == (ErrorCode.NONE, 0)
        assert again.producer_id != first.producer_id


@pytest.mark.parametrize("producer_id, epoch", [(5, -1), (-1, 3)])
def test_half_an_identity_is_refused(broker: Broker, producer_id: int, epoch: int) -> None:
    response = broker.ask(idempotent(producer_id, epoch), 5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (
        ErrorCode.INVALID_REQUEST,
        -1,
        -1,
    )


@pytest.mark.parametrize(
    "transactional_id, code",
    [("payments", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("", ErrorCode.INVALID_REQUEST)],
)
def test_a_transactional_id_must_be_one_whose_coordinator_was_looked_for(
    broker: Broker, transactional_id: str, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    response = broker.ask(request, 5)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


def test_without_the_store_there_are_no_new_ids(broker: Broker) -> None:
    broker.store.set_available(False)
    assert broker.ask(idempotent(), 5).error_code == ErrorCode.REQUEST_TIMED_OUT
    broker.store.set_available(True)
    assert broker.ask(idempotent(), 5).error_code == ErrorCode.NONE


class SlowBlocks:
    def __init__(self) -> None:
        self.taken = 0

    async def allocate_producer_ids(self) -> range:
        await asyncio.sleep(0)
        self.taken += 1
        return range(self.taken * 10, self.taken * 10 + 10)


def test_those_who_wait_for_a_block_share_it() -> None:
    async def scenario() -> None:
        blocks = SlowBlocks()
        ids = ProducerIds(blocks)
        given = await asyncio.gather(*(ids.next() for _ in range(15)))
        assert sorted(given) == list(range(10, 25))
        assert blocks.taken == 2

    asyncio.run(scenario())
