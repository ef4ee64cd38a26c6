"""The judge of disks must be able to condemn: damage of every kind makes Kafka's tool complain."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.clients import ConfluentClient
from tests.compat.messages import Message
from tests.conftest import StartBroker
from tests.harness.disks import dump_log_segments
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name


@pytest.fixture(scope="module")
def partition_dir(start_broker: StartBroker, java: JavaHost) -> Path:
    """A partition of several batches, with entries in both of its indexes, from a stopped broker."""
    broker: BrokerProcess = start_broker()
    topic = create_topic(broker.bootstrap, unique_name("judged"))
    for _ in range(5):
        messages = [Message(key=b"k", value=bytes(3_000)) for _ in range(3)]
        ConfluentClient().write(broker.bootstrap, topic, 0, messages, "none")
    broker.stop()
    return broker.data_dir / f"{topic}-0"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    assert len(data) > abs(position), f"{path.name} has only {len(data)} bytes"
    data[position] ^= 0xFF
    path.write_bytes(data)


def shift_index(path: Path) -> None:
    data = bytearray(path.read_bytes())
    assert len(data) >= 8, "no entry in the offset index"
    offset, position = struct.unpack_from(">ii", data, len(data) - 8)
    struct.pack_into(">ii", data, len(data) - 8, offset - 1, position)
    path.write_bytes(data)


def shift_time_index(path: Path) -> None:
    data = bytearray(path.read_bytes())
    assert len(data) >= 12, "no entry in the time index"
    timestamp, offset = struct.unpack_from(">qi", data, 0)
    struct.pack_into(">qi", data, 0, timestamp + 10_000, offset)
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a byte of a record": (".log", lambda path: flip(path, -10)),
    "an entry of the offset index": (".index", shift_index),
    "an entry of the time index": (".timeindex", shift_time_index),
}


def test_a_sound_partition_passes(partition_dir: Path, java: JavaHost) -> None:
    report = dump_log_segments(java, [partition_dir])
    assert report.complaints == []
    assert report.files_checked >= 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(damage: str, partition_dir: Path, java: JavaHost, tmp_path: Path) -> None:
    suffix, harm = DAMAGES[damage]
    copy = tmp_path / partition_dir.name
    shutil.copytree(partition_dir, copy)
    (path,) = copy.glob(f"*{suffix}")
    harm(path)
    assert dump_log_segments(java, [copy]).complaints
