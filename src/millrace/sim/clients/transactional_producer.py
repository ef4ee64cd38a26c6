"""Writes transactions over several partitions, aborts some, leaves some in the middle, and now and then sends
the late requests of a predecessor that was believed dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import TRANSACTION, Client, ErrorAnswer
from millrace.sim.clients.producer import Workload
from millrace.sim.clients.transactions import Place, TransactionalSession, TransactionBroken
from millrace.sim.history import FencedItself, LateBatchStored, LateEndAccepted, Sent
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

END_VERSION: Final = 5
ABORT_CHANCE: Final = 0.25
ABANDON_CHANCE: Final = 0.08
"""How often a producer gives up in the middle, and its successor begins anew."""
LATE_CHANCE: Final = 0.3
"""How often a request of an ended transaction comes late."""
LATE_END_CHANCE: Final = 0.1
EMPTY_ABORT_CHANCE: Final = 0.1
"""How often a commit is followed by the abort of nothing."""


class TransactionalProducer:
    """Writes transactions until told to stop."""

    def __init__(
        self, client: Client, places: Sequence[Place], workload: Workload, *, is_new: bool, timeout_ms: int
    ) -> None:
        self.client = client
        self.session = TransactionalSession(client, client.name, is_new=is_new, timeout_ms=timeout_ms)
        self.places = list(places)
        self.workload = workload
        self.is_stopping = False
        self.ended_count = 0
        self._next_value = 0
        self._last_identity: tuple[int, int] | None = None
        """The identity under which the last transaction ended."""

    async def run(self) -> None:
        await self.session.begin_anew()
        while not self.is_stopping:
            await self.client.next_turn(self.workload.pause_s)
            try:
                await self._transaction()
            except TransactionBroken:
                await self.session.begin_anew()
            self.ended_count += 1

    async def _transaction(self) -> None:
        session, chance = self.session, self.client.chance
        session.begin()
        try:
            for _ in range(chance.randint(1, self.workload.batches_max)):
                place = chance.choice(self.places)
                await session.write(place, self._values(place[0]))
            if session.is_new and self._last_identity is not None and chance.random() < LATE_END_CHANCE:
                await self._end_late(self._last_identity)
        except TransactionBroken:
            session.note_end("abort")
            raise
        if chance.random() < ABANDON_CHANCE:
            session.note_end("abort")
            before = (session.producer_id, session.epoch)
            await session.begin_anew()
            await self._come_late(before)
            return
        is_commit = chance.random() >= ABORT_CHANCE
        before = (session.producer_id, session.epoch)
        await session.end(commit=is_commit)
        self._last_identity = before
        if not is_commit and chance.random() < LATE_CHANCE:
            await self._come_late(before)
        elif is_commit and session.is_new and chance.random() < EMPTY_ABORT_CHANCE:
            await self._abort_nothing()

    async def _end_late(self, identity: tuple[int, int]) -> None:
        """The end of the last transaction comes once more, in the middle of this one (F16)."""
        session, client = self.session, self.client
        request = EndTxnRequest(
            transactional_id=session.transactional_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=client.chance.random() < 0.5,
        )
        try:
            response: EndTxnResponse = await client.ask_coordinator(
                TRANSACTION, session.transactional_id, ApiKey.END_TXN, END_VERSION, request
            )
        except (ConnectionFailed, ErrorAnswer):
            return
        if not response.error_code:
            client.note(
                LateEndAccepted(
                    at=client.now(), producer=session.transactional_id, transaction=session.number
                )
            )

    async def _abort_nothing(self) -> None:
        """Abort as a program does that fails before it has written anything (F18)."""
        session = self.session
        session.begin()
        try:
            await session.end(commit=False)
        except TransactionBroken as error:
            self.client.note(
                FencedItself(at=self.client.now(), producer=session.transactional_id, reason=str(error))
            )
            raise

    def _values(self, topic: str) -> list[str]:
        values = []
        for _ in range(self.client.chance.randint(1, self.workload.values_max)):
            values.append(f"{topic}|{self.client.name}|{self._next_value}")
            self._next_value += 1
        return values

    async def _come_late(self, identity: tuple[int, int]) -> None:
        """A batch of the transaction that was just aborted arrives now: it must never count (F15)."""
        session, client = self.session, self.client
        place = client.chance.choice(self.places)
        (value,) = self._values(place[0])[:1]
        client.note(
            Sent(
                at=client.now(),
                producer=session.transactional_id,
                topic=place[0],
                partition=place[1],
                value=value,
                transaction=session.number,
            )
        )
        late = TransactionalSession(client, session.transactional_id, is_new=False, timeout_ms=1)
        late.producer_id, late.epoch = identity
        try:
            await late.produce_once(place, [value], session.next_sequence(place))
        except ErrorAnswer:
            return
        except ConnectionFailed:
            # The batch may still be on its way. With the old protocol only a new epoch keeps it out for good,
            # and clients ask for one.
            await session.begin_anew()
            return
        if identity == (session.producer_id, session.epoch):
            session.skip_sequence(place)
        client.note(LateBatchStored(at=client.now(), producer=session.transactional_id, value=value))
