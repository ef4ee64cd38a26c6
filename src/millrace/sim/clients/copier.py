"""Copies one topic into another exactly once: what the copier writes and how far it has read are one
transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import Client, ErrorAnswer
from millrace.sim.clients.offsets import NONE_COMMITTED, fetch_offsets
from millrace.sim.clients.producer import Workload
from millrace.sim.clients.reading import EARLIEST, fetch, list_offset, visible_records
from millrace.sim.clients.transactions import TransactionalSession, TransactionBroken
from millrace.sim.history import Copying, OffsetCommitted, TransactionRead
from millrace.wire.error_codes import ErrorCode

ABORT_CHANCE: Final = 0.1
RECORDS_MAX: Final = 20
WAIT_MS: Final = 1_000


def copy_of(target: str, value: str) -> str:
    return f"{target}|copy of|{value}"


class Copier:
    """Copies until told to stop."""

    def __init__(
        self,
        client: Client,
        source: str,
        target: str,
        partitions: Sequence[int],
        workload: Workload,
        *,
        is_new: bool,
        timeout_ms: int,
        offsets_expire_s: float | None = None,
    ) -> None:
        self.client = client
        self._offsets_expire_s = offsets_expire_s
        self._committed: dict[int, int] = {}
        self._committed_at = 0.0
        self.source = source
        self.target = target
        self.group = f"group-of-{client.name}"
        self.session = TransactionalSession(client, client.name, is_new=is_new, timeout_ms=timeout_ms)
        self.workload = workload
        self.is_stopping = False
        self.is_idle = False
        """Whether nothing was left to copy at the last look."""
        self._partitions = list(partitions)
        self._positions: dict[int, int] | None = None

    async def run(self) -> None:
        client = self.client
        client.note(Copying(at=client.now(), source=self.source, target=self.target))
        await self.session.begin_anew()
        while not self.is_stopping:
            await self.client.next_turn(self.workload.pause_s)
            try:
                await self._copy_some()
            except TransactionBroken:
                self._positions = None
                await self.session.begin_anew()
            except (ConnectionFailed, ErrorAnswer):
                self.client.forget_leader(self.source)
                await self.client.pause()

    async def _copy_some(self) -> None:
        client = self.client
        if self._positions is None:
            found = await fetch_offsets(client, self.group, self.source, self._partitions)
            self._positions = {
                partition: max(offset, 0) if offset != NONE_COMMITTED else self._remembered(partition)
                for partition, offset in found.items()
            }
        answers = await fetch(client, self.source, self._positions, committed_only=True, wait_ms=WAIT_MS)
        read: dict[int, list[tuple[int, str]]] = {}
        after = dict(self._positions)
        for partition, data in answers.items():
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._positions[partition] = await list_offset(client, self.source, partition, EARLIEST)
                return
            if data.error_code:
                raise ErrorAnswer("Fetch", data.error_code)
            start = self._positions[partition]
            records, next_offset = visible_records(
                data.records or b"", start, data.aborted_transactions, committed_only=True
            )
            if len(records) > RECORDS_MAX:
                records = records[:RECORDS_MAX]
                next_offset = records[-1][0] + 1
            read[partition] = list(records)
            after[partition] = next_offset
        if any(read.values()):
            self.is_idle = False
            await self._transact(read, after)
        else:
            self._positions = after
            self.is_idle = True

    async def _transact(self, read: dict[int, list[tuple[int, str]]], after: dict[int, int]) -> None:
        client, session = self.client, self.session
        session.begin()
        values = tuple(value for records in read.values() for _, value in records)
        client.note(
            TransactionRead(
                at=client.now(),
                producer=session.transactional_id,
                transaction=session.number,
                values=values,
            )
        )
        try:
            for partition, records in read.items():
                if records:
                    copies = [copy_of(self.target, value) for _, value in records]
                    await session.write((self.target, partition), copies)
            await session.commit_offsets(
                self.group, {(self.source, partition): offset for partition, offset in after.items()}
            )
        except TransactionBroken:
            session.note_end("abort")
            raise
        is_commit = client.chance.random() >= ABORT_CHANCE
        asked_at = client.now()
        await session.end(commit=is_commit)
        self._positions = after if is_commit else None
        if is_commit:
            self._committed, self._committed_at = after, client.loop.time()
            for partition, offset in after.items():
                client.note(
                    OffsetCommitted(
                        at=client.now(),
                        group=self.group,
                        member=client.name,
                        generation=-1,
                        topic=self.source,
                        partition=partition,
                        offset=offset,
                        asked_at=asked_at,
                    )
                )

    def _remembered(self, partition: int) -> int:
        """Where to begin if the broker knows of no offset: the broker may forget offsets that are old enough,
        and then only the copier itself can tell."""
        expire_s = self._offsets_expire_s
        if expire_s is not None and self.client.loop.time() - self._committed_at >= expire_s:
            return self._committed.get(partition, 0)
        return 0
