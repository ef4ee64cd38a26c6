"""Records of an archive for the data source's own reader: `format("millrace").option("archive", URL)`.

Both sides hold the same records at the same offsets, so a range of offsets may be read from either: what the
archive has comes from its files, the rest from the broker. Rows come in no promised order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.pipeline.lake.delta_log import DataFile, Snapshot, open_store, read_snapshot
from millrace.pipeline.lake.errors import TopicRecreated
from millrace.pipeline.spark.stores import FROM_ENVIRONMENT, StoreAccess

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

Ranges = Mapping[int, tuple[int, int]]

TARGET_BYTES: Final = 64 << 20
"""One task reads files together up to this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSplit:
    """What one task reads: some files, and of each partition the offsets from (with) and to (without)."""

    table: str
    files: tuple[str, ...]
    ranges: tuple[tuple[int, int, int], ...]
    access: StoreAccess = FROM_ENVIRONMENT


class ArchivedTopic:
    """One topic's archive at the version that was the newest when this object was made."""

    def __init__(
        self,
        root: str,
        topic: str,
        topic_id: str | None = None,
        access: StoreAccess = FROM_ENVIRONMENT,
    ) -> None:
        """Raises NoArchive, or TopicRecreated if the archive is that of another topic of the name."""
        snapshot: Snapshot = read_snapshot(root, topic, access)
        ledger = snapshot.ledger
        if topic_id is not None and ledger.topic_id != topic_id:
            raise TopicRecreated(
                f"topic {topic} was deleted and created again after {root} archived it: its offsets mean"
                " other records now, so archive and topic cannot be read as one"
            )
        self._root = root
        self._access = access
        self._files = snapshot.files
        self.version = snapshot.version
        self.first: Mapping[int, int] = ledger.first
        """The first offset archived of each partition; `earliest` means this one."""
        self.next: Mapping[int, int] = ledger.next
        """The offset behind the last one archived; from here on the broker is asked."""

    def archived_part(self, ranges: Ranges) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
        """Cut ranges (from, to) of partitions into those to read here and those to read from the broker."""
        here: dict[int, tuple[int, int]] = {}
        live: dict[int, tuple[int, int]] = {}
        for partition, (start, end) in ranges.items():
            border = min(max(self.next.get(partition, start), start), end)
            if start < border:
                here[partition] = (start, border)
            if border < end:
                live[partition] = (border, end)
        return here, live

    def splits(self, ranges: Ranges) -> list[ArchiveSplit]:
        """Tasks for ranges that the archive holds; files that cannot have any of it are left out."""
        wanted = tuple(
            (partition, start, end) for partition, (start, end) in sorted(ranges.items()) if start < end
        )
        if not wanted:
            return []
        groups: list[list[str]] = []
        filled = TARGET_BYTES
        for file in self._files:
            if not _may_hold(file, wanted):
                continue
            if filled + file.size > TARGET_BYTES:
                groups.append([])
                filled = 0
            groups[-1].append(file.path)
            filled += file.size
        return [
            ArchiveSplit(table=self._root, files=tuple(group), ranges=wanted, access=self._access)
            for group in groups
        ]


def read_split(split: ArchiveSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of one split, with these columns of the archive's schema, as Spark wants its Arrow."""
    import pyarrow.dataset as ds

    from millrace.pipeline.lake.location import root_url

    store, _ = open_store(root_url(split.table), split.access)
    form = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    scanned = ds.dataset(list(split.files), filesystem=store, format=form)
    for batch in scanned.to_batches(columns=list(columns), filter=_filter(split.ranges)):
        if batch.num_rows:
            yield _as_spark_wants(batch)


def _may_hold(file: DataFile, wanted: Sequence[tuple[int, int, int]]) -> bool:
    if file.partitions is None or file.offsets is None:
        return True
    (low, high), (first, last) = file.partitions, file.offsets
    return any(low <= partition <= high and start <= last and first < end for partition, start, end in wanted)


def _filter(ranges: Sequence[tuple[int, int, int]]) -> ds.Expression:
    import pyarrow.compute as pc

    partition, offset = pc.field("partition"), pc.field("offset")
    chosen = None
    for number, start, end in ranges:
        part = (partition == number) & (offset >= start) & (offset < end)
        chosen = part if chosen is None else chosen | part
    assert chosen is not None, "no ranges"
    return chosen


def _as_spark_wants(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Timestamps in microseconds of UTC, and names of a list's items as Spark has them."""
    import pyarrow as pa

    from millrace.pipeline.records.row_schema import arrow_schema

    schema = arrow_schema(tuple(batch.schema.names))
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
