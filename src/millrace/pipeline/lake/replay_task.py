"""What a Spark task of a replay does: append archived records to their partition in order, each once.

Records and the offset behind them (a committed offset of the replay's group) become visible in one
transaction. An attempt that starts again, or late, first takes the transactional id for itself and then looks
how far the last one came. Rows must come sorted by partition and offset, those of a partition to one task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.client.transactional import (
    EncodedBatch,
    Marker,
    TaskProducer,
    end_transaction,
    init_producer,
    read_marker,
)
from millrace.core.ids import TopicPartition
from millrace.pipeline.lake.topics import BrokerOptions
from millrace.pipeline.records.encoder import Columns, encode
from millrace.wire.compression import Codec

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.client.broker_client import BrokerClient

RESULT_SCHEMA: Final = "partition INT, sent BIGINT, next BIGINT"
TRANSACTION_RECORDS: Final = 50_000
TRANSACTION_TIMEOUT_MS: Final = 120_000
BATCH_BYTES: Final = 512 << 10
"""Half of what topics take by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """What every task of one replay needs to know."""

    broker: BrokerOptions
    group: str
    target: str
    codec: Codec = Codec.NONE
    transaction_records: int = TRANSACTION_RECORDS


def sender(task: ReplayTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: takes archived rows, gives one row for each partition."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        results = list(_send_all(task, batches))
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([each[0] for each in results], pa.int32()),
                "sent": pa.array([each[1] for each in results], pa.int64()),
                "next": pa.array([each[2] for each in results], pa.int64()),
            }
        )

    return send


def _send_all(task: ReplayTask, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, int]]:
    current: _PartitionSender | None = None
    with task.broker.client() as client:
        try:
            for batch in batches:
                for partition, rows in _by_partition(batch):
                    if current is None or current.partition != partition:
                        if current is not None:
                            yield current.finish()
                        current = _PartitionSender(client, task, partition)
                    current.add(rows)
            if current is not None:
                yield current.finish()
        except BaseException:
            if current is not None:
                current.give_up()
            raise


class _PartitionSender:
    """Sends the records of one partition, in transactions of `transaction_records`."""

    def __init__(self, client: BrokerClient, task: ReplayTask, partition: int) -> None:
        self.partition = partition
        self._client = client
        self._task = task
        self._place = TopicPartition(task.target, partition)
        self._producer: TaskProducer | None = None
        self._next = 0
        self._in_transaction = 0
        self._sent = 0

    def add(self, rows: pa.RecordBatch) -> None:
        producer = self._producer or self._begin()
        rows = _from_offset(rows, self._next)
        if rows.num_rows == 0:
            return
        producer.produce(_encoded(rows, self._place, self._task.codec))
        self._next = rows.column("offset")[-1].as_py() + 1
        self._in_transaction += rows.num_rows
        if self._in_transaction >= self._task.transaction_records:
            self._commit(producer)

    def finish(self) -> tuple[int, int, int]:
        if self._producer is not None:
            self._commit(self._producer)
        return self.partition, self._sent, self._next

    def give_up(self) -> None:
        if self._producer is not None:
            self._producer.abort()

    def _begin(self) -> TaskProducer:
        """Take the transactional id, then read the marker: from then on no other attempt can move it."""
        identity = init_producer(self._client, f"{self._task.group}-{self.partition}", TRANSACTION_TIMEOUT_MS)
        marker = read_marker(self._client, self._task.group, self._place)
        # The marker is ahead of us if another attempt has done our work meanwhile: we skip those rows.
        self._next = max(self._next, 0 if marker is None else marker.offset)
        self._producer = TaskProducer(self._client, identity, timeout_ms=TRANSACTION_TIMEOUT_MS)
        return self._producer

    def _commit(self, producer: TaskProducer) -> None:
        if self._in_transaction:
            producer.mark(self._task.group, self._place, Marker(self._next, ""))
            end_transaction(self._client, producer.identity, is_commit=True)
            producer.is_open = False
        self._sent += self._in_transaction
        self._in_transaction = 0
        self._producer = None


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    import numpy as np

    numbers = batch.column("partition").to_numpy(zero_copy_only=False)
    if len(numbers) == 0:
        return
    bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, end in itertools.pairwise(bounds):
        yield int(numbers[start]), batch.slice(start, end - start)


def _from_offset(rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    import numpy as np

    offsets = rows.column("offset").to_numpy(zero_copy_only=False)
    return rows.slice(int(np.searchsorted(offsets, offset)))


def _encoded(rows: pa.RecordBatch, place: TopicPartition, codec: Codec) -> list[EncodedBatch]:
    import numpy as np
    import pyarrow as pa

    columns = Columns(
        key=rows.column("key").cast(pa.binary()),
        value=rows.column("value").cast(pa.binary()),
        headers=rows.column("headers"),
        timestamps=rows.column("timestamp_ms").to_numpy(zero_copy_only=False).astype(np.int64),
    )
    return encode(
        columns, np.zeros(rows.num_rows, np.int64), [place], batch_bytes_max=BATCH_BYTES, codec=codec
    )
