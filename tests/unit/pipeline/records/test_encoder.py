"""Records encoded column by column are read back by the reader of record batches, whatever is in them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from millrace.client.transactional import EncodedBatch
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.records.encoder import Columns, encode
from millrace.wire.batch_header import BatchHeader
from millrace.wire.compression import Codec, decompress
from millrace.wire.records import assemble_batch, read_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
LIMIT = 20_000

Header = dict[str, str | bytes | None]
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def records_of(batch: EncodedBatch) -> list[Row]:
    data = bytes(decompress(batch.codec, batch.payload, 1 << 30))
    assert len(data) <= LIMIT or batch.record_count == 1
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=batch.record_count - 1,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=batch.record_count,
    )
    found = read_records(assemble_batch(header, data))
    assert [record.offset for record in found] == list(range(batch.record_count))
    assert max(record.timestamp for record in found) == batch.max_timestamp
    return [(each.timestamp, each.key, each.value, each.headers) for each in found]


def random_bytes(chance: random.Random) -> bytes | None:
    size = chance.choice([None, 0, 1, 5, 63, 64, 65, 200, 8191, 8192, 25_000])
    return None if size is None else chance.randbytes(size)


@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("has_headers", [False, True])
def test_what_is_encoded_is_read_back(count: int, has_key: bool, has_headers: bool) -> None:
    chance = random.Random(count * 4 + 2 * has_key + has_headers)
    keys = [random_bytes(chance) if has_key else None for _ in range(count)]
    values = [random_bytes(chance) for _ in range(count)]
    many: list[Header] = [{"key": f"k{n}", "value": None} for n in range(70)]
    one: list[Header] = [{"key": "a", "value": b"1"}]
    headers: list[list[Header] | None] = [chance.choice([None, [], one, many]) for _ in range(count)]
    times = [chance.randrange(1_700_000_000_000, 1_700_000_900_000) for _ in range(count)]
    destinations = [chance.randrange(len(PARTITIONS)) for _ in range(count)]
    codec = chance.choice(list(Codec))

    batches = encode(
        Columns(
            key=pa.array(keys, pa.binary()) if has_key else None,
            value=pa.array(values, pa.binary()),
            headers=pa.array(headers, HEADERS) if has_headers else None,
            timestamps=np.array(times, np.int64),
        ),
        np.array(destinations, np.int64),
        PARTITIONS,
        batch_bytes_max=LIMIT,
        codec=codec,
    )

    expected: dict[TopicPartition, list[Row]] = {}
    for row in range(count):
        row_headers = tuple((str(h["key"]), h["value"]) for h in headers[row] or ()) if has_headers else ()
        expected.setdefault(PARTITIONS[destinations[row]], []).append(
            (times[row], keys[row], values[row], row_headers)  # type: ignore[arg-type]
        )
    found: dict[TopicPartition, list[Row]] = {}
    for batch in batches:
        found.setdefault(batch.partition, []).extend(records_of(batch))
    assert found == expected


def test_rows_of_a_slice_are_only_those_of_the_slice() -> None:
    values = pa.array([b"x", b"yy", None, b"zzz"], pa.binary()).slice(1, 3)
    headers = pa.array([[], [{"key": "h", "value": b"v"}], None, []], HEADERS).slice(1, 3)
    columns = Columns(key=values, value=values, headers=headers, timestamps=np.full(3, 5, np.int64))

    (batch,) = encode(columns, np.zeros(3, np.int64), PARTITIONS, batch_bytes_max=LIMIT)

    assert records_of(batch) == [
        (5, b"yy", b"yy", (("h", b"v"),)),
        (5, None, None, ()),
        (5, b"zzz", b"zzz", ()),
    ]


def test_no_rows_are_no_batches() -> None:
    columns = Columns(
        key=None, value=pa.array([], pa.binary()), headers=None, timestamps=np.zeros(0, np.int64)
    )
    assert encode(columns, np.zeros(0, np.int64), PARTITIONS, batch_bytes_max=LIMIT) == []


def test_a_header_without_a_key_is_refused() -> None:
    columns = Columns(
        key=None,
        value=pa.array([b"x"], pa.binary()),
        headers=pa.array([[{"key": None, "value": b"v"}]], HEADERS),
        timestamps=np.zeros(1, np.int64),
    )
    with pytest.raises(PipelineError, match="a header has no key"):
        encode(columns, np.zeros(1, np.int64), PARTITIONS, batch_bytes_max=LIMIT)
