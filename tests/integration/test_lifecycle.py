"""Start, stop, refuse to start, and what the broker tells about itself while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.compat.clients import ConfluentClient
from tests.compat.messages import Message
from tests.harness.batches import batch
from tests.harness.millrace import MILLRACE, MillraceProcess
from tests.harness.process import eventually, free_port
from tests.harness.protocol import (
    FETCH_VERSION,
    end_offset,
    fetch_one,
    fetch_partition,
    fetch_request,
    init_producer_id,
    leader_epoch,
    produce,
    topic_id,
)
from tests.harness.raw import FETCH, METADATA, RawConnection
from tests.harness.topics import create_topic, unique_name
from tests.integration.conftest import StartMillrace


@pytest.fixture(scope="module")
def broker(start_millrace: StartMillrace) -> MillraceProcess:
    return start_millrace({"auto.create.topics.enable": "false"})


def messages(count: int) -> list[Message]:
    return [Message(key=None, value=b"%d" % number) for number in range(count)]


def test_sigterm_stops_in_order_and_the_next_start_finds_all(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("kept"), partitions=3)
    for partition in range(3):
        ConfluentClient().write(broker.bootstrap, topic, partition, messages(500), "lz4")
    with RawConnection((broker.host, broker.port)) as connection:
        first_id = init_producer_id(connection)[0]
    mark = broker.data_dir / ".kafka_cleanshutdown"
    assert not mark.exists()

    assert broker.stop() == 0
    assert mark.exists()
    recovery = (broker.data_dir / "recovery-point-offset-checkpoint").read_text()
    assert f"{topic} 0 500" in [line.rstrip() for line in recovery.splitlines()]

    broker.start()
    assert broker.started_in_s < 5
    # The mark is for one start only: a crash from now on must be seen as one.
    assert not mark.exists()
    spans = {(topic, partition): (0, 500) for partition in range(3)}
    assert len(ConfluentClient().read(broker.bootstrap, spans)) == 1_500
    with RawConnection((broker.host, broker.port)) as connection:
        assert init_producer_id(connection)[0] > first_id


def test_a_stop_with_waiting_clients_does_not_take_long(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("waiting"))
    with RawConnection((broker.host, broker.port)) as connection:
        request = fetch_request({topic_id(connection, topic): [fetch_partition(0, 0)]}, max_wait=60_000)
        connection.send(FETCH, FETCH_VERSION, request)
        idle = RawConnection((broker.host, broker.port))
        assert broker.stop(15) == 0
        idle.socket.close()


def test_an_epoch_of_the_past_is_fenced(start_millrace: StartMillrace) -> None:
    # F3. Epochs rise when the leadership starts anew.
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("fenced"))
    broker.kill()
    broker.start()
    with RawConnection((broker.host, broker.port)) as connection:
        epoch = leader_epoch(connection, topic)
        if epoch == 0:
            pytest.skip("a single broker keeps its leader epoch over restarts: no stale epoch can exist")
        assert fetch_one(connection, topic, 0, 0, current_leader_epoch=epoch - 1)["error_code"] == (
            "fenced_leader_epoch"
        )


def test_a_second_broker_on_the_same_data_refuses_to_start(broker: MillraceProcess) -> None:
    second = MillraceProcess(broker.directory)
    second.output_path = broker.directory / "second.out"
    second.launch()
    assert second.wait_exit(20) != 0
    output = second.output()
    assert "Traceback" not in output
    assert str(broker.data_dir) in output
    assert broker.answers()


def test_a_taken_port_is_named(broker: MillraceProcess, tmp_path: Path) -> None:
    second = MillraceProcess(tmp_path)
    second.port = broker.port
    second.launch()
    assert second.wait_exit(20) != 0
    assert "Traceback" not in second.output()
    assert str(broker.port) in second.output()


@pytest.mark.parametrize(
    "setting, hint",
    [
        ("log.retention.msec=5", "log.retention.ms"),
        ("log.segment.bytes=much", "much"),
        ("num.partitions=0", "num.partitions"),
    ],
)
def test_wrong_settings_are_named_at_the_start(setting: str, hint: str, tmp_path: Path) -> None:
    key, value = setting.split("=")
    broken = MillraceProcess(tmp_path, {key: value})
    broken.launch()
    assert broken.wait_exit(20) != 0
    output = broken.output()
    assert "Traceback" not in output
    assert key in output
    assert hint in output


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    # Assertions guard the data; -O would take them out.
    words = [sys.executable, "-O", MILLRACE, "serve", "--data-dir", str(tmp_path / "data")]
    answer = subprocess.run(
        [*words, "--listen", f"127.0.0.1:{free_port()}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.returncode != 0
    assert "-O" in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


def test_health_and_readiness(broker: MillraceProcess) -> None:
    assert broker.http("/healthz")[0] == 200
    status, body = broker.http("/readyz")
    assert status == 200
    assert json.loads(body)["status"] == "ready"
    assert broker.http("/nothing-here")[0] == 404


def measured(broker: MillraceProcess) -> Callable[..., float]:
    """The values of /metrics by name and labels."""
    status, body = broker.http("/metrics")
    assert status == 200
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    return lambda name, **labels: samples[name, tuple(sorted(labels.items()))]


def test_metrics_tell_of_open_transactions(broker: MillraceProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("measured"))
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": unique_name("measured")}
    )
    producer.init_transactions(30)
    before = measured(broker)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    time.sleep(0.1)
    meanwhile = measured(broker)
    producer.commit_transaction(30)
    after = measured(broker)
    for page, state in ((before, "Empty"), (meanwhile, "Ongoing"), (after, "CompleteCommit")):
        counts = {
            each: page("millrace_transactions", state=each) for each in ("Empty", "Ongoing", "CompleteCommit")
        }
        assert counts == {**dict.fromkeys(counts, 0), state: 1}
    assert meanwhile("millrace_transaction_oldest_open_seconds") >= 0.1
    assert after("millrace_transaction_markers_pending") == 0


def test_metrics_are_what_prometheus_reads(broker: MillraceProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("measured"))
    ConfluentClient().write(broker.bootstrap, topic, 0, messages(100), "none")
    ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, 100)})
    with RawConnection((broker.host, broker.port)) as connection:
        produce(connection, unique_name("absent"), batch([b"x"]))
    value = measured(broker)

    assert value("millrace_topic_messages_in_total", topic=topic) == 100
    assert value("millrace_topic_bytes_in_total", topic=topic) > 100
    assert value("millrace_topic_bytes_out_total", topic=topic) > 100
    assert value("millrace_log_end_offset", topic=topic, partition="0") == 100
    assert value("millrace_log_size_bytes", topic=topic, partition="0") > 100
    assert value("millrace_connections") >= 0
    assert value("millrace_request_duration_seconds_count", api="PRODUCE") >= 1
    assert value("millrace_request_duration_seconds_bucket", api="FETCH", le="+Inf") >= 1
    assert value("millrace_request_errors_total", api="PRODUCE", error="UNKNOWN_TOPIC_OR_PARTITION") >= 1


def test_metadata_answers_with_an_address_to_dial(start_millrace: StartMillrace) -> None:
    plain = start_millrace()
    with RawConnection(("127.0.0.1", plain.port)) as connection:
        (node,) = connection.call(METADATA, 1, {"topics": []})["brokers"]
    assert (node["host"], node["port"]) == ("127.0.0.1", plain.port)
    advertised = start_millrace({"advertised.listeners": "PLAINTEXT://broker.example:19092"})
    with RawConnection(("127.0.0.1", advertised.port)) as connection:
        (node,) = connection.call(METADATA, 1, {"topics": []})["brokers"]
    assert (node["host"], node["port"]) == ("broker.example", 19_092)


def test_all_interfaces_are_never_an_address_to_dial(tmp_path: Path) -> None:
    broker = MillraceProcess(tmp_path)
    port = broker.port
    broker.host = "0.0.0.0"
    broker.launch()
    broker.host = "127.0.0.1"
    try:
        broker.wait_ready()
        for address in ("127.0.0.1", "127.0.0.2"):
            with RawConnection((address, port)) as connection:
                (node,) = connection.call(METADATA, 1, {"topics": []})["brokers"]
                assert (node["host"], node["port"]) == (address, port)
    finally:
        broker.end()


@pytest.mark.timed
def test_an_idle_broker_is_small_and_starts_fast(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    assert broker.resident_bytes() < 100 << 20
    broker.stop()
    times = []
    for _ in range(3):
        broker.start()
        times.append(broker.started_in_s)
        broker.stop()
    # The promise is under 1 s on an idle machine, which `make bench` measures; the tests share theirs.
    assert min(times) < 6
    broker.start()


def test_a_killed_broker_recovers_without_the_mark(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("torn"))
    ConfluentClient().write(broker.bootstrap, topic, 0, messages(1_000), "none")
    broker.kill()
    (log_file,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    # A torn tail: half a batch that was never acknowledged.
    with log_file.open("ab") as file:
        file.write(batch([b"never acknowledged"] * 5)[:70])
    broker.start()
    with RawConnection((broker.host, broker.port)) as connection:
        assert end_offset(connection, topic) == 1_000
    offsets = ConfluentClient().write(broker.bootstrap, topic, 0, messages(1), "none")
    assert offsets == [1_000]
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, 1_001)})
    assert [message.offset for message in received] == list(range(1_001))
    eventually(lambda: broker.http("/readyz")[0] == 200)
