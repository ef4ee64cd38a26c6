"""A broker with several data directories: replicas move between them under load, and one that is gone takes
only its own partitions along."""

from __future__ import annotations

import base64
import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import CheckDisks
from tests.harness.batches import batch
from tests.harness.java import JavaHost
from tests.harness.millrace import run_millrace
from tests.harness.process import eventually
from tests.harness.protocol import end_offset, produce
from tests.harness.raw import RawConnection
from tests.harness.topics import create_topic, unique_name
from tests.harness.two_disks import TwoDisks
from tests.integration.test_crash import check, writers_to

SETTINGS = {
    "log.segment.delete.delay.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    # A directory that vanished is noticed when this is written.
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
KILLS = 4


@pytest.fixture
def broker(tmp_path: Path, check_disks: CheckDisks) -> Iterator[TwoDisks]:
    process = TwoDisks(tmp_path, SETTINGS)
    process.start()
    yield process
    process.end()
    check_disks(process)


@pytest.mark.timeout(180)
def test_moves_under_load_and_kills_lose_and_repeat_nothing(broker: TwoDisks) -> None:
    broker.stop()
    broker.settings["replica.alter.log.dirs.io.max.bytes.per.second"] = "4000000"
    broker.start()
    topic = create_topic(broker.bootstrap, unique_name("moving"), 2, {"segment.bytes": str(1 << 20)})
    writers = writers_to(broker, topic, 2)
    chance = random.Random(7)
    with ExitStack() as writing:
        for writer in writers:
            writing.enter_context(writer)
        eventually(lambda: min(writer.written for writer in writers) > 1_000, 60)
        for number in range(KILLS):
            partition = number % 2
            target = broker.other(broker.home_of(topic, partition))
            assert broker.alter(target, topic, partition) == ["none"]
            # Now in the middle of the copying, now about its end.
            time.sleep(chance.uniform(0.0, 1.0))
            broker.kill()
            broker.start()
            written = writers[partition].written
            eventually(lambda: writers[partition].written > written, 60)  # noqa: B023 - called at once
        for partition in (0, 1):
            target = broker.other(broker.home_of(topic, partition))
            assert broker.alter(target, topic, partition) == ["none"]
            eventually((target / f"{topic}-{partition}").is_dir, 60)
    eventually(lambda: not any(broker.arriving(data) for data in broker.data_dirs), 30)
    check(broker, topic, writers)
    assert broker.stop() == 0
    broker.start()
    check(broker, topic, writers)
    assert "Traceback" not in broker.output()


def test_a_log_that_an_older_topic_left_on_the_other_disk_is_set_aside_at_the_start(broker: TwoDisks) -> None:
    topic = create_topic(broker.bootstrap, unique_name("again"), 1)
    with RawConnection((broker.host, broker.port)) as connection:
        produce(connection, topic, batch([b"new"]))
    assert broker.stop() == 0
    home = broker.home_of(topic)
    returned = broker.other(home) / f"{topic}-0"
    shutil.copytree(home / f"{topic}-0", returned)
    old_id = base64.urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")
    (returned / "partition.metadata").write_text(f"version: 0\ntopic_id: {old_id}")
    broker.start()
    assert broker.home_of(topic) == home
    assert len(list(broker.other(home).glob(f"{topic}-0.*-stray"))) == 1
    with RawConnection((broker.host, broker.port)) as connection:
        assert end_offset(connection, topic) == 1
    assert "is a log of a topic that does not exist" in broker.output()


def test_a_move_waits_for_its_throttle_and_can_be_taken_back(broker: TwoDisks) -> None:
    topic = create_topic(broker.bootstrap, unique_name("slow"), 1)
    with RawConnection((broker.host, broker.port)) as connection:
        for _ in range(8):
            assert produce(connection, topic, batch([bytes(500_000)]))["error_code"] == "none"
    throttle = "replica.alter.log.dirs.io.max.bytes.per.second"
    done = run_millrace(
        "config", "alter", "--broker", "1", "--set", f"{throttle}=100000", "-b", broker.bootstrap
    )
    assert done.returncode == 0, done.stderr
    home = broker.home_of(topic)
    target = broker.other(home)
    assert broker.alter(target, topic, 0) == ["none"]
    eventually(lambda: broker.arriving(target) == [(topic, 0)])
    described = run_millrace("log-dirs", "describe", "--partitions", "--json", "-b", broker.bootstrap)
    rows = [json.loads(line) for line in described.stdout.splitlines()]
    (arriving,) = (row for row in rows if row["is_arriving"])
    assert (arriving["directory"], arriving["topic"], arriving["partition"]) == (str(target), topic, 0)
    assert arriving["lag"] > 0
    assert broker.alter(home, topic, 0) == ["none"]
    assert broker.arriving(target) == []
    eventually(lambda: not list(target.glob("*-future")))
    assert broker.home_of(topic) == home


def test_a_directory_that_is_gone_takes_only_its_own_partitions_along(broker: TwoDisks) -> None:
    topic = create_topic(broker.bootstrap, unique_name("gone"), 2)
    with RawConnection((broker.host, broker.port)) as connection:
        for partition in (0, 1):
            assert produce(connection, topic, batch([b"kept"]), partition=partition)["error_code"] == "none"
    lost = next(number for number in (0, 1) if broker.home_of(topic, number) == broker.second_dir)
    kept = 1 - lost
    elsewhere = broker.directory / "elsewhere"
    broker.second_dir.rename(elsewhere)

    def code(partition: int) -> str:
        with RawConnection((broker.host, broker.port)) as connection:
            return str(produce(connection, topic, batch([b"more"]), partition=partition)["error_code"])

    eventually(lambda: code(lost) == "kafka_storage_error")
    assert code(kept) == "none"
    assert broker.describe()[str(broker.second_dir)]["error_code"] == "kafka_storage_error"
    health, body = broker.http("/healthz")
    assert health == 200
    assert list(json.loads(body)["offline_directories"]) == [str(broker.second_dir)]
    summary = run_millrace("log-dirs", "describe", "-b", broker.bootstrap).stdout
    assert [line.split()[2] for line in summary.splitlines()[1:]] == ["online", "offline"]

    # A start finds an empty directory in its place, and makes nothing anew.
    broker.kill()
    broker.start()
    assert code(lost) == "kafka_storage_error"
    assert code(kept) == "none"
    new = create_topic(broker.bootstrap, unique_name("new"), 2)
    assert {broker.home_of(new, number) for number in (0, 1)} == {broker.data_dir}
    assert not list(broker.data_dir.glob(f"{topic}-{lost}"))
    assert "is its disk mounted?" in broker.output()

    # The disk is back, and all is as it was.
    assert broker.stop() == 0
    shutil.rmtree(broker.second_dir)
    elsewhere.rename(broker.second_dir)
    broker.start()
    assert code(lost) == "none"
    with RawConnection((broker.host, broker.port)) as connection:
        assert end_offset(connection, topic, lost) >= 2
    assert broker.describe()[str(broker.second_dir)]["error_code"] == "none"


@pytest.mark.java
def test_kafkas_own_tools_describe_and_move(broker: TwoDisks, java: JavaHost, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap, unique_name("tools"), 1)
    with RawConnection((broker.host, broker.port)) as connection:
        for _ in range(3):
            produce(connection, topic, batch([bytes(100_000)]))
    at = ["--bootstrap-server", broker.bootstrap]
    answer = java.tool("org.apache.kafka.tools.LogDirsCommand", [*at, "--describe", "--topic-list", topic])
    assert answer["status"] == 0, answer
    document = json.loads(answer["stdout"].splitlines()[-1])
    directories = {entry["logDir"]: entry for entry in document["brokers"][0]["logDirs"]}
    assert set(directories) == {str(data) for data in broker.data_dirs}
    assert all(entry["error"] is None for entry in directories.values())
    home = broker.home_of(topic)
    target = broker.other(home)
    assert directories[str(home)]["partitions"][0]["size"] > 300_000

    plan = tmp_path / "plan.json"
    entry = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    words = [*at, "--reassignment-json-file", str(plan)]
    answer = java.tool(tool, [*words, "--execute", "--replica-alter-log-dirs-throttle", "50000000"])
    assert answer["status"] == 0, answer
    assert f"to {target} for replica {topic}-0 with broker 1" in answer["stdout"], answer

    def is_verified() -> bool:
        answer = java.tool(tool, [*words, "--verify"])
        assert answer["status"] == 0, answer
        return "completed successfully" in answer["stdout"]

    eventually(is_verified, 30, 0.5)
    assert broker.home_of(topic) == target
    with RawConnection((broker.host, broker.port)) as connection:
        assert end_offset(connection, topic) == 3


def test_a_plan_of_our_own_moves_and_leads_back(broker: TwoDisks, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap, unique_name("plan"), 1)
    home = broker.home_of(topic)
    target = broker.other(home)
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    entry = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    at = ("-b", broker.bootstrap)
    done = run_millrace("reassign", "verify", str(plan), *at)
    assert (done.returncode, "elsewhere" in done.stdout) == (1, True), done
    done = run_millrace("reassign", "execute", str(plan), "--wait", "--save-previous", str(back), *at)
    assert done.returncode == 0, done.stderr
    done = run_millrace("reassign", "verify", str(plan), *at)
    assert (done.returncode, "done" in done.stdout) == (0, True), done
    assert broker.home_of(topic) == target
    assert json.loads(back.read_text())["partitions"][0]["log_dirs"] == [str(home)]
    done = run_millrace("reassign", "execute", str(back), "--wait", *at)
    assert done.returncode == 0, done.stderr
    eventually((home / f"{topic}-0").is_dir)
    entry["log_dirs"] = ["/nowhere"]
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    done = run_millrace("reassign", "execute", str(plan), *at)
    assert done.returncode == 1
    assert "not configured" in done.stderr
