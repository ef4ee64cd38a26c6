"""Dump and verify: sound directories are sound, every kind of damage is found, nothing is changed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.core.clock import SystemIdSource
from millrace.core.ids import TopicId, TopicPartition
from millrace.log.cleaning.cleaner import LogCleaner
from millrace.log.cleaning.cleaner_policy import CleanerConfig
from millrace.log.cleaning.compaction_runner import InlineRunner
from millrace.log.config import LogConfig
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.disk.volume import DiskVolume
from millrace.log.errors import FileMissing
from millrace.log.inspection.dump import Row, dump
from millrace.log.inspection.verify import VerifyResult, verify
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.wire.compression import Codec
from millrace.wire.records import ControlMarker, ControlType, Record, build_batch, build_marker
from tests.unit.log.unsynced import UnsyncedVolume

START = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200, cleanup_compact=True, segment_ms=2**60)


class FixedClock:
    def wall_ms(self) -> int:
        return START


async def build_data_directory(path: str) -> None:
    """Two partitions: idempotent, transactional, compressed, compacted, closed in order."""
    volume = UnsyncedVolume()
    directory = LogDirectory(volume, path, clock=FixedClock(), ids=SystemIdSource(), chance=random.Random(3))
    await directory.open()
    directory.ensure_identity(node_id=1, cluster_id="c")
    await directory.load(lambda _: CONFIG)
    topic_id = TopicId(os.urandom(16))
    for number in range(2):
        log = directory.create(TopicPartition("orders", number), topic_id, CONFIG)
        fill(log)

    async def save(_: PartitionLog) -> None:
        await directory.save_cleaner_offsets()

    cleaner = LogCleaner(
        lambda: [directory.logs[TopicPartition("orders", 1)]],
        InlineRunner(volume),
        FixedClock(),
        CleanerConfig(),
        save,
    )
    assert await cleaner.clean_dirtiest()
    await directory.close()


def fill(log: PartitionLog) -> None:
    rng = random.Random(5)
    for number in range(150):
        records = [
            Record(
                index,
                START + number * 10 + index,
                b"key-%d" % rng.randrange(20),
                rng.choice([b"text", b"\xff\xfe", None]),
            )
            for index in range(rng.randrange(1, 5))
        ]
        batch = build_batch(
            records,
            codec=Codec(number % 5),
            producer_id=9,
            producer_epoch=0,
            base_sequence=log.log_end_offset,
        )
        log.append_as_leader(memoryview(bytearray(batch)), number // 50, START + number * 10)
    for control_type in (ControlType.ABORT, ControlType.COMMIT):
        sequence = 0 if control_type == ControlType.ABORT else 1
        batch = build_batch(
            [Record(0, START + 2000, b"k", b"v", (("name", b"x"),))],
            producer_id=10,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append_as_leader(memoryview(bytearray(batch)), 3, START + 2000)
        marker = build_marker(
            ControlMarker(control_type, 4),
            offset=log.log_end_offset,
            timestamp=START + 2001,
            producer_id=10,
            producer_epoch=0,
            leader_epoch=3,
        )
        log.append_replicated(memoryview(bytearray(marker)))
    log.high_watermark = log.log_end_offset


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    asyncio.run(build_data_directory(str(path)))
    return path


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "data")
    return tmp_path / "data"


def snapshot_of(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def check(path: Path, *, deep: bool = True) -> VerifyResult:
    return verify(DiskVolume(), str(path), deep=deep)


def segment(data: Path, number: int = 0, suffix: str = ".log") -> Path:
    return sorted(data.glob(f"orders-0/*{suffix}"))[number]


def test_a_sound_directory_is_sound_and_stays_as_it_is(data: Path) -> None:
    before = snapshot_of(data)
    steps: list[tuple[int, int]] = []
    result = verify(
        DiskVolume(), str(data), deep=True, progress=lambda done, total: steps.append((done, total))
    )
    assert result.problems == []
    assert result.is_sound
    assert result.batches > 150
    assert result.records > 400
    live = {name: content for name, (content, _) in before.items() if not name.endswith(".deleted")}
    assert result.files == len(live)
    total = sum(len(content) for content in live.values())
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)
    assert list(dump(DiskVolume(), str(data), with_records=True))
    assert snapshot_of(data) == before


def test_a_partition_and_one_file_can_be_asked_for_alone(data: Path) -> None:
    assert check(data / "orders-1").is_sound
    one = check(segment(data, 1))
    assert one.files == 1
    assert one.is_sound
    assert check(segment(data, 1, ".index")).is_sound
    with pytest.raises(FileMissing):
        check(data / "nothing")


@pytest.mark.parametrize("size_bytes", [0, 70])
def test_quarantine_is_shown_and_a_problem(data: Path, size_bytes: int) -> None:
    log = segment(data, 0)
    position = log.stat().st_size - size_bytes
    damaged = DamagedRange(position, size_bytes, 7, 9)
    save_damage(DiskVolume(), str(log.with_suffix(QUARANTINE_SUFFIX)), (damaged,))
    found = [problem for problem in check(data).problems if "quarantine" in problem.what]
    assert [(problem.path, problem.position) for problem in found] == [(str(log), position)]
    assert "offsets 7 to 8" in found[0].what
    assert ("missing" in found[0].what) == (size_bytes == 0)
    rows = [row for row in rows_of(data) if row["type"] == "quarantine"]
    assert [
        (row["position"], row["size_bytes"], row["first_offset"], row["next_offset"]) for row in rows
    ] == [damaged]


def rows_of(path: Path) -> list[Row]:
    rows = list(dump(DiskVolume(), str(path), with_records=True))
    return [json.loads(json.dumps(row)) for row in rows]


def test_the_dump_shows_every_kind_of_file(data: Path) -> None:
    rows = rows_of(data)
    types = {row["type"] for row in rows}
    assert types >= {
        "batch",
        "record",
        "control-record",
        "offset-index",
        "time-index",
        "aborted-transaction",
        "producer",
        "leader-epoch",
        "checkpoint",
        "partition-metadata",
        "properties",
    }
    assert "damage" not in types
    batches = [row for row in rows if row["type"] == "batch" and row["file"].startswith("orders-0/")]
    assert {row["compression"] for row in batches} == {"uncompressed", "gzip", "snappy", "lz4", "zstd"}
    assert [row["base_offset"] for row in batches] == sorted(row["base_offset"] for row in batches)
    assert all(row["is_sound"] for row in batches)
    assert any(row["delete_horizon"] for row in rows if row["type"] == "batch")
    records = [row for row in rows if row["type"] == "record" and row["file"].startswith("orders-0/")]
    assert [row["offset"] for row in records[:3]] == [0, 1, 2]
    assert {"text", None} <= {row.get("value", "binary") for row in records}
    assert any(row.get("value_base64") == "//4=" for row in records)
    assert records[-1]["headers"] == [{"name": "name", "value": "x"}]
    controls = [row for row in rows if row["type"] == "control-record"]
    assert {row["control"] for row in controls} == {"abort", "commit"}
    assert controls[0]["coordinator_epoch"] == 4


def flip(path: Path, position: int, value: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[position] = content[position] ^ 1 if value is None else value
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def swap_segments(data: Path) -> None:
    first, second = segment(data, 0), segment(data, 1)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda data: flip(segment(data), 400), "checksum"),
    "a cut file": (lambda data: cut(segment(data), 3), "length"),
    "a cut header": (lambda data: segment(data).write_bytes(segment(data).read_bytes()[:7]), "header"),
    "a length that cannot be": (lambda data: flip(segment(data), 8, 0x7F), "length"),
    "a magic that is not known": (lambda data: flip(segment(data), 16, 1), "magic"),
    "segments in each other's place": (swap_segments, "begins before"),
    "an index position": (lambda data: flip(segment(data, 0, ".index"), 7), "where a batch begins"),
    "an index offset": (lambda data: flip(segment(data, 0, ".index"), 2, 9), "offset"),
    "an index that shrinks": (lambda data: flip(segment(data, 0, ".index"), 11, 0), "does not grow"),
    "a cut index": (lambda data: cut(segment(data, 0, ".index"), 3), "multiple"),
    "a time index that is too early": (lambda data: flip(segment(data, 0, ".timeindex"), 4, 0), "timestamp"),
    "a cut time index": (lambda data: cut(segment(data, 0, ".timeindex"), 5), "multiple"),
    "a cut transaction index": (lambda data: cut(segment(data, -1, ".txnindex"), 5), "multiple"),
    "a snapshot": (lambda data: flip(segment(data, -1, ".snapshot"), 12), "snapshot"),
    "a name": (lambda data: segment(data).rename(segment(data).with_name("12.log")), "20 digits"),
    "leader epochs": (
        lambda data: (data / "orders-0/leader-epoch-checkpoint").write_text("0\n2\n1 5\n0 9\n"),
        "epoch 0",
    ),
    "half leader epochs": (
        lambda data: (data / "orders-0/leader-epoch-checkpoint").write_text("0\n2\n1 5\n"),
        "whole",
    ),
    "a checkpoint": (lambda data: (data / "recovery-point-offset-checkpoint").write_text("zero"), "whole"),
    "partition metadata": (lambda data: (data / "orders-0/partition.metadata").write_text("?"), "topic id"),
    "an index alone": (lambda data: segment(data).unlink(), "without a log"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(data: Path, name: str) -> None:
    damage, words = DAMAGE[name]
    damage(data)
    result = check(data)
    assert any(words in problem.what for problem in result.problems), result.problems
    assert all(problem.path.startswith(str(data)) for problem in result.problems)
    # The dump shows what it can and does not fall over.
    assert rows_of(data)


def test_records_are_read_only_if_asked_for(data: Path) -> None:
    # A batch with a right checksum over records that are wrong.
    path = segment(data)
    broken = bytearray(build_batch([Record(0, START, b"k", b"v")]))
    broken[-1] = 5
    from crc32c import crc32c

    broken[17:21] = crc32c(memoryview(broken)[21:]).to_bytes(4, "big")
    path.write_bytes(broken)
    for index in (".index", ".timeindex"):
        segment(data, 0, index).unlink()
    assert check(data / "orders-0", deep=False).is_sound
    assert not check(data / "orders-0", deep=True).is_sound


def test_random_damage_never_stops_the_check(data: Path) -> None:
    rng = random.Random(11)
    files = [file for file in data.rglob("*") if file.is_file() and file.stat().st_size]
    for _ in range(60):
        victim = rng.choice(files)
        content = victim.read_bytes()
        flip(victim, rng.randrange(len(content)), rng.randrange(256))
        check(victim if rng.random() < 0.5 else victim.parent)
        rows_of(victim)
        victim.write_bytes(content)
