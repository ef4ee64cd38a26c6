"""Answers that carry records, to consumers and to followers: small slices copied, large ones by sendfile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, cast

from millrace.broker.network.outgoing import SENDFILE_MIN_BYTES, Chunk
from millrace.core.lanes import Waits
from millrace.log.errors import StorageError
from millrace.log.partition.log_slice import LogSlice

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.requests import Slot
    from millrace.log.disk.volume import Volume


async def warm_all(volume: Volume, slices: Sequence[LogSlice]) -> None:
    """Bring records from the disk into the page cache, those of each disk in its own threads."""
    loop = asyncio.get_running_loop()
    by_lane: dict[Executor | None, list[LogSlice]] = {}
    for records in slices:
        assert records.file is not None
        by_lane.setdefault(volume.lane(Waits.READ, records.file.path), []).append(records)
    await asyncio.gather(*(loop.run_in_executor(lane, warm, some) for lane, some in by_lane.items()))


def warm(slices: list[LogSlice]) -> None:
    """Bring records from the disk into the page cache, in a thread: a read on the loop would stop
    everybody."""
    for records in slices:
        try:
            records.warm()
        except StorageError:
            # Sending will meet the same failure, and end the connection that asked for it.
            return


def send_records(
    connection: Connection, slot: Slot | None, before: bytes, records: LogSlice, behind: bytes
) -> None:
    """One slice with the bytes around it; into `slot` where the answer has its place already."""
    if records.size_bytes >= SENDFILE_MIN_BYTES:
        send_chunks(connection, slot, [before, cast("Chunk", records), behind])
        return
    # A few kilobytes are sooner copied than sent by a system call of their own.
    try:
        frame = before + records.read() + behind
    except StorageError as error:
        connection.abort(str(error))
        return
    if slot is not None:
        slot.complete(frame)
    else:
        connection.send(frame)


def send_chunks(connection: Connection, slot: Slot | None, chunks: list[Chunk]) -> None:
    if slot is not None:
        slot.complete(chunks)
    else:
        connection.send_chunks(chunks)
