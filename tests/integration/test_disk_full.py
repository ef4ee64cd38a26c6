"""A full disk (F10): writes are refused clearly, all else goes on, and writes come back without a restart."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.clients import ConfluentClient
from tests.compat.test_produce import confluent_outcome
from tests.conftest import CheckDisks
from tests.harness.batches import batch
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.protocol import end_offset, produce
from tests.harness.raw import DELETE_RECORDS, RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name

SIZE_MB = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    answer = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {answer.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def broker(small_disk: Path, check_disks: CheckDisks) -> Iterator[MillraceProcess]:
    process = MillraceProcess(
        small_disk / "broker",
        {"log.segment.delete.delay.ms": "300", "log.retention.check.interval.ms": "300"},
    )
    process.output_path = small_disk.parent / "millrace.out"
    process.start()
    yield process
    process.end()
    check_disks(process)


def test_a_full_disk_refuses_writes_and_nothing_else(broker: MillraceProcess) -> None:
    filler = create_topic(broker.bootstrap, unique_name("filler"))
    topic = create_topic(broker.bootstrap, unique_name("kept"))
    small = create_topic(broker.bootstrap, unique_name("small"))
    big = batch([bytes(900_000)])
    with RawConnection((broker.host, broker.port)) as connection:
        assert produce(connection, small, batch([b"before"]))["error_code"] == "none"
        for _ in range(8):
            assert produce(connection, filler, big)["error_code"] == "none"
        acknowledged = 0
        refused = None
        for number in range(200):
            outcome = produce(connection, topic, batch([b"%d " % number + bytes(200_000)]))
            if outcome["error_code"] != "none":
                refused = outcome
                break
            assert outcome["base_offset"] == acknowledged
            acknowledged += 1
        assert refused is not None, "the disk never became full"
        assert refused["error_code"] == "kafka_storage_error"
        # The same connection goes on, and the answer stays the same.
        assert produce(connection, topic, big)["error_code"] == "kafka_storage_error"
        assert end_offset(connection, topic) == acknowledged
    assert acknowledged > 10
    assert broker.is_running()

    # Reads and admin go on.
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, acknowledged)})
    assert [(message.value or b"").split(b" ")[0] for message in received] == [
        b"%d" % number for number in range(acknowledged)
    ]
    admin = admin_client(broker.bootstrap)
    assert {filler, topic, small} <= set(admin.list_topics(timeout=60).topics)
    assert broker.http("/healthz")[0] in (200, 503)
    # Deleting makes room, and writes come back by themselves.
    admin.delete_topics([filler])[filler].result(20)
    eventually(
        lambda: isinstance(confluent_outcome(broker.bootstrap, topic, {"retries": 0}, value=b"after"), int),
        deadline_s=30,
    )
    with RawConnection((broker.host, broker.port)) as connection:
        end = end_offset(connection, topic)
        assert produce(connection, small, batch([b"after"]))["base_offset"] == 1
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, end)})
    assert [message.offset for message in received] == list(range(end))
    assert received[acknowledged].value == b"after"
    assert "Traceback" not in broker.output()

    # Nothing torn was left behind: the same after a crash.
    broker.kill()
    broker.start()
    again = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, end)})
    assert again == received


def test_deleting_records_makes_room_on_a_full_disk(broker: MillraceProcess) -> None:
    configs = {"segment.bytes": str(1 << 20)}
    topic = create_topic(broker.bootstrap, unique_name("own"), configs=configs)
    with RawConnection((broker.host, broker.port)) as connection:
        count = 0
        while produce(connection, topic, batch([bytes(300_000)]))["error_code"] == "none":
            count += 1
            assert count < 200, "the disk never became full"
        partitions = [{"partition_index": 0, "offset": count - 2}]
        request = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 10_000}
        answer = connection.call(DELETE_RECORDS, 2, request)["topics"][0]["partitions"][0]
        assert (answer["error_code"], answer["low_watermark"]) == ("none", count - 2)
        eventually(
            lambda: produce(connection, topic, batch([bytes(300_000)]))["error_code"] == "none", deadline_s=60
        )
