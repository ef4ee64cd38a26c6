"""Reads one range of offsets into Arrow batches, fetching ahead while it decodes. Runs in workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from millrace.client import fetch_frames
from millrace.client.blocking_connection import BlockingConnection
from millrace.client.broker_client import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, BrokerClient
from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.client.fetch_frames import RawFetch
from millrace.pipeline.errors import DataLost, PipelineError
from millrace.pipeline.records.decoder import Decoder, RowFilter, scan_batches
from millrace.pipeline.source.options import SourceOptions
from millrace.pipeline.source.planning import Range
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode

log: Final = logging.getLogger(__name__)

_FIRST_FETCH_BYTES: Final = 256 * 1024
"""The first answer shows how large records are; a short range must not fetch megabytes beyond its end."""
_SPARE: Final = 1.2
_MAX_WAIT_MS: Final = 500
_TOPIC_GONE: Final = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_NOTHING: Final = RawFetch(-1, -1, -1, [], memoryview(b""))


class PartitionReader:
    """Reads one range of offsets, once."""

    def __init__(
        self, options: SourceOptions, wanted: Range, columns: tuple[str, ...], rows: RowFilter
    ) -> None:
        self._options = options
        self._range = wanted
        self._partition = wanted.partition
        self._rows = rows
        self._decoder = Decoder(wanted.partition.topic, wanted.partition.partition, columns)
        self._offset = wanted.start
        self._bytes_per_offset = 0.0
        self._connection: BlockingConnection | None = None
        self._version = fetch_frames.VERSIONS[1]

    def read(self) -> Iterator[pa.RecordBatch]:
        """All rows of the range; raises DataLost if some are gone and the options do not allow for that."""
        with self._options.client() as client:
            try:
                yield from self._read(client)
            finally:
                self._disconnect()

    def _read(self, client: BrokerClient) -> Iterator[pa.RecordBatch]:
        end = self._range.end
        pending = self._ask(client)
        while self._offset < end:
            fetched = self._receive(client, pending)
            # The first batch may begin before the place asked for, and hold records that were deleted.
            rows = replace(self._rows, offset_from=max(self._rows.offset_from, self._offset))
            scan = scan_batches(
                fetched.records,
                self._offset,
                end,
                fetched.aborted if self._options.isolation == READ_COMMITTED else [],
                check_crc=self._options.check_crcs,
            )
            if scan.next_offset > self._offset:
                self._bytes_per_offset = scan.bytes_read / (scan.next_offset - self._offset)
                self._offset = scan.next_offset
            elif fetched.records:
                raise PipelineError(
                    f"{self._partition}: the {len(fetched.records)} bytes that the broker sent for offset "
                    f"{self._offset} hold no batch with it; is fetch.max.bytes below the size of a batch?"
                )
            # The broker prepares the next answer while this one is decoded.
            if self._offset < end:
                pending = self._ask(client)
            yield from self._decoder.decode(fetched.records, scan.batches, rows)

    def _ask(self, client: BrokerClient) -> int:
        """Send the next Fetch; if the connection is gone, the wait for the answer will notice."""
        if self._connection is None:
            self._connection, self._version = client.retrying(
                lambda: client.connect_to_leader(self._partition)
            )
        body = fetch_frames.encode_request(
            self._range.topic_id,
            self._partition.partition,
            self._offset,
            max_bytes=self._next_bytes(),
            isolation=self._options.isolation,
            max_wait_ms=_MAX_WAIT_MS,
            version=self._version,
        )
        try:
            return self._connection.send(ApiKey.FETCH, self._version, body)
        except ConnectionFailed:
            return -1

    def _next_bytes(self) -> int:
        if not self._bytes_per_offset:
            return min(_FIRST_FETCH_BYTES, self._options.fetch_bytes)
        left = int((self._range.end - self._offset) * self._bytes_per_offset * _SPARE)
        return min(self._options.fetch_bytes, max(left, _FIRST_FETCH_BYTES))

    def _receive(self, client: BrokerClient, pending: int) -> RawFetch:
        """Wait for an answer with records; ask again while failures may pass or no records are there."""
        deadline = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            try:
                fetched = self._receive_once(pending)
                if fetched.records:
                    return fetched
                self._check_reachable(fetched, deadline)
            except ConnectionFailed:
                self._disconnect()
                client.forget_leader(self._partition)
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)
            except BrokerRefused as refused:
                self._bear(client, refused, deadline)
            if self._offset >= self._range.end:
                return _NOTHING
            pending = self._ask(client)

    def _receive_once(self, pending: int) -> RawFetch:
        if self._connection is None or pending < 0:
            raise ConnectionFailed(f"{self._partition}: the connection to its leader is gone")
        answer = self._connection.receive(pending)
        return fetch_frames.decode_response(answer, f"reading {self._partition} at offset {self._offset}")

    def _check_reachable(self, fetched: RawFetch, deadline: float) -> None:
        """After an answer without records, raise DataLost once the range's end is overdue."""
        if time.monotonic() < deadline:
            return
        committed = self._options.isolation == READ_COMMITTED
        limit = fetched.last_stable_offset if committed else fetched.high_watermark
        raise DataLost(
            f"{self._partition}: nothing came for offset {self._offset} of a range up to {self._range.end}; "
            f"the broker can be read up to {limit}"
        )

    def _bear(self, client: BrokerClient, refused: BrokerRefused, deadline: float) -> None:
        """Go on after an error if that is right, or raise."""
        is_out_of_range = refused.code == ErrorCode.OFFSET_OUT_OF_RANGE
        if is_out_of_range and self._is_lost(client):
            return
        # A broker that refuses an offset that the log has was no longer its leader, or not yet.
        if not refused.retriable and not is_out_of_range:
            raise refused
        self._disconnect()
        client.forget_leader(self._partition)
        if refused.code in _TOPIC_GONE and self._is_gone(client):
            self._lose(
                f"topic {self._partition.topic} was deleted or created again since this read was planned",
                self._range.end,
            )
        elif time.monotonic() >= deadline:
            raise refused
        else:
            time.sleep(0.1)

    def _is_gone(self, client: BrokerClient) -> bool:
        topic = client.metadata([self._partition.topic]).get(self._partition.topic)
        return topic is None or topic.topic_id != self._range.topic_id

    def _is_lost(self, client: BrokerClient) -> bool:
        """Whether the log lacks the offset that we asked for; if so, reading goes on behind the loss."""
        client.forget_leader(self._partition)
        earliest = client.list_offsets({self._partition: EARLIEST})[self._partition].offset
        if self._offset < earliest:
            upto = min(earliest, self._range.end)
            self._lose(
                f"{self._partition}: offsets {self._offset} to {upto - 1} are gone, "
                f"its log starts at {earliest}",
                upto,
            )
            return True
        latest = client.list_offsets({self._partition: LATEST}, READ_UNCOMMITTED)[self._partition].offset
        if self._offset <= latest:
            return False
        self._lose(
            f"{self._partition}: offset {self._offset} of a range up to {self._range.end} is behind the end "
            f"of its log, {latest}",
            self._range.end,
        )
        return True

    def _lose(self, reason: str, go_on_at: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{reason}. failOnDataLoss=false goes on without those records")
        log.warning("%s; going on without, as failOnDataLoss=false says", reason)
        self._offset = go_on_at

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
