"""Short of descriptors: what needs one is refused or waits, nothing else changes, and all goes on when there
are some again."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import CheckDisks
from tests.harness.batches import batch
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.protocol import end_offset, fetch_records, produce
from tests.harness.raw import RawConnection
from tests.harness.topics import create_topic, unique_name

SPARE = 2
"""Descriptors that are left when the shortage begins: for the first few who come."""
SMALL_SEGMENTS = {"segment.bytes": "1048576"}
COMPACTED = {
    **SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "500",
}


@pytest.fixture
def broker(tmp_path: Path, check_disks: CheckDisks) -> Iterator[MillraceProcess]:
    process = MillraceProcess(
        tmp_path / "broker",
        {
            "log.cleaner.backoff.ms": "100",
            "log.flush.scheduler.interval.ms": "200",
            "log.flush.offset.checkpoint.interval.ms": "300",
            "replica.high.watermark.checkpoint.interval.ms": "300",
            "log.open.files.max": "16",
        },
    )
    process.start()
    yield process
    process.end()
    check_disks(process)


@contextlib.contextmanager
def shortage(broker: MillraceProcess) -> Iterator[None]:
    """The process may open next to nothing more."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    limit = broker.open_files() + SPARE
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


def figure(broker: MillraceProcess, name: str) -> float:
    _, text = broker.http("/metrics")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def test_a_broker_without_descriptors_goes_on_when_there_are_some_again(broker: MillraceProcess) -> None:
    topics = [create_topic(broker.bootstrap, unique_name("plain"), configs=SMALL_SEGMENTS) for _ in range(24)]
    compacted = create_topic(broker.bootstrap, unique_name("compacted"), configs=COMPACTED)
    accepted: dict[str, list[bytes]] = {topic: [] for topic in topics}
    crowd: list[RawConnection] = []

    def send_to_all(connection: RawConnection, text: str) -> int:
        refused = 0
        for topic in topics:
            value = f"{topic} {text}".encode()
            if produce(connection, topic, batch([value]))["error_code"] == "none":
                accepted[topic].append(value)
            else:
                refused += 1
        return refused

    with RawConnection((broker.host, broker.port)) as connection:
        assert send_to_all(connection, "before") == 0
        for number in range(20):
            produce(connection, compacted, batch([bytes(200_000)], keys=[b"%d" % (number % 3)]))
        with shortage(broker):
            for _ in range(30):
                with contextlib.suppress(OSError):
                    crowd.append(RawConnection((broker.host, broker.port)))
            for number in range(10):
                send_to_all(connection, f"during {number}")
            eventually(lambda: "Too many open files" in broker.output(), 10)
        for each in crowd:
            each.socket.close()

        eventually(lambda: send_to_all(connection, "after") == 0)
        new = create_topic(broker.bootstrap, unique_name("new"))
        with RawConnection((broker.host, broker.port)) as other:
            assert produce(other, new, batch([b"new"]))["error_code"] == "none"
        for topic, values in accepted.items():
            stored = fetch_records(connection, topic, 0, 0)
            assert end_offset(connection, topic) >= len(values)
            assert all(value in stored for value in values), topic
    eventually(lambda: figure(broker, "millrace_cleaner_passes_total") > 0, 20)
    assert broker.http("/healthz")[0] == 200
    assert "millrace_background_failures_total{" not in broker.http("/metrics")[1]
