"""Archives read without Spark: from logs and files made by hand, as Delta's protocol describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.pipeline.lake.archived_rows import ArchivedTopic, read_split
from millrace.pipeline.lake.delta_log import read_snapshot
from millrace.pipeline.lake.errors import ArchiveError, ForeignTable, NoArchive, TopicRecreated
from millrace.pipeline.lake.ledger import Ledger

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {"metaData": {"id": "x", "configuration": {}, "partitionColumns": ["date"]}}
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


class HandMadeTable:
    """A table of the topic `orders` whose log is written action by action."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "orders"
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1
        self.ledger = Ledger(topic="orders", topic_id="id-1", first={0: 0, 1: 0}, next={0: 0, 1: 0})

    def commit(self, *actions: Mapping[str, Any], ledger: Ledger | None = None) -> None:
        self.version += 1
        info = {"commitInfo": {"userMetadata": ledger.to_json()} if ledger else {"operation": "OPTIMIZE"}}
        lines = [json.dumps(action) for action in (info, *actions)]
        (self.log / f"{self.version:020}.json").write_text("\n".join(lines))

    def begin(self) -> None:
        self.commit(PROTOCOL, METADATA, ledger=self.ledger)

    def append(self, partition: int, start: int, end: int) -> None:
        self.ledger = self.ledger.after({partition: (start, end)})
        self.commit(self.file(partition, start, end), ledger=self.ledger)

    def file(self, partition: int, start: int, end: int) -> dict[str, Any]:
        """Write a Parquet file with these records; the action that adds it."""
        name = f"date=2026-01-31/part {partition}-{start}.parquet"
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        count = end - start
        rows = {
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(start, end), pa.int64()),
            "timestamp": pa.array([1_769_817_600_000_000] * count, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([b"%d" % offset for offset in range(start, end)]),
            "headers": pa.array(
                [[{"key": "h", "value": None}]] * count,
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
        # As Spark writes timestamps unless it is told otherwise.
        pq.write_table(pa.table(rows), target, use_deprecated_int96_timestamps=partition == 1)
        bounds = {"minValues": {"partition": partition, "offset": start}}
        bounds["maxValues"] = {"partition": partition, "offset": end - 1}
        return {
            "add": {
                "path": name.replace(" ", "%20"),
                "size": target.stat().st_size,
                "stats": json.dumps({"numRecords": count, **bounds}),
            }
        }

    def checkpoint(self, actions: list[dict[str, Any]]) -> None:
        """Replace the log up to the present version, as Delta does every few commits, and clean it up."""
        pq.write_table(pa.Table.from_pylist(actions), self.log / f"{self.version:020}.checkpoint.parquet")


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    made = HandMadeTable(tmp_path)
    made.begin()
    return made


def offsets_of(archived: ArchivedTopic, ranges: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for split in archived.splits(ranges):
        for batch in read_split(split, COLUMNS):
            found += list(
                zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
            )
    return sorted(found)


def test_files_added_and_removed_leave_what_counts(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    table.append(0, 10, 20)
    joined = table.file(0, 0, 20)
    table.commit(
        {"remove": {"path": "date=2026-01-31/part%200-10.parquet"}},
        {"remove": {"path": "date=2026-01-31/part%200-0.parquet"}},
        joined,
        ledger=table.ledger.when_compacted(),
    )
    snapshot = read_snapshot(str(table.root), "orders")
    assert snapshot.version == 3
    assert [(file.partitions, file.offsets) for file in snapshot.files] == [((0, 0), (0, 19))]
    assert snapshot.ledger == table.ledger.when_compacted()


def test_a_checkpoint_stands_for_the_commits_before_it(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    kept = table.file(0, 0, 10)["add"]
    table.checkpoint(
        [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}, "metaData": None, "add": None},
            {"protocol": None, "metaData": {"id": "x", "configuration": [("a", "b")]}, "add": None},
            {"protocol": None, "metaData": None, "add": kept},
        ]
    )
    (table.log / f"{0:020}.json").unlink()
    table.append(1, 0, 5)
    archived = ArchivedTopic(str(table.root), "orders")
    assert archived.next == {0: 10, 1: 5}
    everything = offsets_of(archived, {0: (0, 10), 1: (0, 5)})
    assert everything == [(0, offset) for offset in range(10)] + [(1, offset) for offset in range(5)]


def test_the_ledger_is_found_below_commits_of_others(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    kept = table.file(0, 0, 10)["add"]
    table.commit()
    table.checkpoint([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}, "add": kept}])
    table.commit()
    assert read_snapshot(str(table.root), "orders").ledger.next == {0: 10, 1: 0}


def test_rows_come_as_the_source_gives_them(table: HandMadeTable) -> None:
    table.append(1, 0, 3)
    (split,) = ArchivedTopic(str(table.root), "orders").splits({1: (1, 3)})
    (batch,) = read_split(split, COLUMNS)
    assert batch.column("value").to_pylist() == [b"1", b"2"]
    assert batch.column("headers").to_pylist() == [[{"key": "h", "value": None}]] * 2
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_files_without_anything_wanted_are_not_opened(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    table.append(1, 0, 10)
    (table.path / "date=2026-01-31" / "part 0-0.parquet").unlink()
    archived = ArchivedTopic(str(table.root), "orders")
    assert offsets_of(archived, {1: (3, 5)}) == [(1, 3), (1, 4)]
    assert archived.splits({0: (10, 10)}) == []


def test_a_range_is_cut_where_the_archive_ends(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    archived = ArchivedTopic(str(table.root), "orders")
    here, live = archived.archived_part({0: (4, 15), 1: (0, 3), 2: (0, 1)})
    assert here == {0: (4, 10)}
    assert live == {0: (10, 15), 1: (0, 3), 2: (0, 1)}
    assert archived.archived_part({0: (2, 5)}) == ({0: (2, 5)}, {})
    assert archived.archived_part({0: (12, 15)}) == ({}, {0: (12, 15)})


def test_an_archive_of_another_topic_of_the_name_is_refused(table: HandMadeTable) -> None:
    ArchivedTopic(str(table.root), "orders", "id-1")
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        ArchivedTopic(str(table.root), "orders", "id-2")


def test_no_archive_is_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(NoArchive, match="no archive of topic orders at"):
        read_snapshot(str(tmp_path), "orders")


def test_a_missing_commit_is_never_passed_over(table: HandMadeTable) -> None:
    table.append(0, 0, 10)
    table.append(0, 10, 20)
    (table.log / f"{1:020}.json").unlink()
    with pytest.raises(ArchiveError, match="version 1 is missing"):
        read_snapshot(str(table.root), "orders")


@pytest.mark.parametrize(
    "action, complaint",
    [
        ({"protocol": {"minReaderVersion": 4}}, "reader version 4"),
        ({"protocol": {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}}, "v2Checkpoint"),
        ({"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}}, "columns by name"),
        ({"add": {"path": "a", "size": 1, "deletionVector": {"storageType": "u"}}}, "deletion vector"),
    ],
)
def test_what_is_not_understood_is_refused(
    table: HandMadeTable, action: dict[str, Any], complaint: str
) -> None:
    table.commit(action)
    with pytest.raises(ForeignTable, match=complaint):
        read_snapshot(str(table.root), "orders")


def test_a_table_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    made = HandMadeTable(tmp_path)
    made.commit(PROTOCOL, METADATA)
    with pytest.raises(ForeignTable, match="no commit of Millrace"):
        read_snapshot(str(tmp_path), "orders")
