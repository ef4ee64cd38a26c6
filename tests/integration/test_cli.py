"""The command line against a running broker, as a user types it: real processes, pipes and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess

MILLRACE: Final = str(Path(sys.executable).with_name("millrace"))


class Shell:
    """Runs `millrace` with the broker's address in the environment."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.environment = dict(os.environ, MILLRACE_BOOTSTRAP=broker.bootstrap)

    def run(self, *words: str, stdin: bytes = b"", code: int = 0) -> str:
        """Standard output; the command must end with this exit code."""
        answer = self.result(*words, stdin=stdin)
        assert answer.returncode == code, answer.stderr.decode()
        assert b"Traceback" not in answer.stderr
        return answer.stdout.decode()

    def fail(self, *words: str, stdin: bytes = b"") -> str:
        """The one line on standard error of a command that fails."""
        answer = self.result(*words, stdin=stdin)
        assert answer.returncode == 1, answer
        text = answer.stderr.decode()
        assert text.startswith("Error: ")
        return text

    def json(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]

    def result(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [MILLRACE, *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, env=self.environment, timeout=60, check=False
        )

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [MILLRACE, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            # A test run in the background ignores Ctrl-C, and its children would inherit that.
            preexec_fn=_obey_interrupts,  # noqa: PLW1509 - no threads of ours in the child
        )


def _obey_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def shell(start_broker: StartBroker) -> Shell:
    return Shell(start_broker())


def test_a_topic_lives_from_create_to_delete(shell: Shell) -> None:
    shell.run("topic", "create", "lives", "-p", "2", "-c", "retention.ms=60000")
    assert "already exists" in shell.fail("topic", "create", "lives")
    shell.run("topic", "create", "lives", "--if-not-exists")
    assert {"topic": "lives", "partitions": 2, "replication_factor": 1} in shell.json("topic", "list")

    shell.run("topic", "alter", "lives", "--partitions", "3", "-c", "segment.bytes=2000000")
    (described,) = shell.json("topic", "describe", "lives")
    assert len(described["topic_id"]) == 22
    assert described["configs"] == {"retention.ms": "60000", "segment.bytes": "2000000"}
    assert [partition["end_offset"] for partition in described["partitions"]] == [0, 0, 0]
    table = shell.run("topic", "describe", "lives")
    assert "PARTITION" in table
    assert described["topic_id"] in table

    assert shell.run("topic", "delete", "lives") == "deleted lives\n"
    assert "lives" not in shell.run("topic", "list")
    assert "no such topic: lives" in shell.fail("topic", "describe", "lives")
    shell.run("topic", "delete", "lives", "--if-exists")


def test_one_bad_topic_does_not_hide_the_others(shell: Shell) -> None:
    answer = shell.result("topic", "create", "good", "bad/name")
    assert answer.returncode == 1
    assert answer.stdout == b"created good\n"
    assert answer.stderr.startswith(b"Error: bad/name: ")


def test_a_wrong_setting_is_refused_by_name(shell: Shell) -> None:
    assert "retention.mss" in shell.fail("topic", "create", "wrong", "-c", "retention.mss=1")
    assert "retention.ms" in shell.fail("topic", "create", "wrong", "-c", "retention.ms=soon")


def test_lines_with_keys_come_back_as_they_were_sent(shell: Shell) -> None:
    shell.run("topic", "create", "lines", "-p", "1")
    shell.run("produce", "lines", "-K", ":", "-H", "source=test", "-H", "flag", stdin=b"a:1\nb:2\r\nc:\n")
    assert shell.run("consume", "lines") == "1\n2\n\n"
    assert shell.run(
        "consume", "lines", "--keys", "--headers", "--offsets", "--separator", "|"
    ).splitlines() == [
        "0:0|source=test,flag|a|1",
        "0:1|source=test,flag|b|2",
        "0:2|source=test,flag|c|",
    ]
    assert shell.run("consume", "lines", "-t", "{key}={value}", "-n", "2") == "a=1\nb=2\n"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_be_copied_through_json_lines(shell: Shell, compression: str) -> None:
    source, copy = f"source-{compression}", f"copy-{compression}"
    # The messages are of 2023, and must not be too old for the topic while the test runs.
    shell.run("topic", "create", source, copy, "-p", "2", "-c", "retention.ms=-1")
    lines = (
        b'{"partition":0,"timestamp":1700000000000,"key":"k","value":"v","headers":[{"name":"h","value":"x"}]}\n'
        b'{"partition":1,"timestamp":"2023-11-14T22:13:20Z","key_base64":"/w==","value":null}\n'
        b'{"partition":1,"timestamp":1700000000001,"key":null,"value":{"amount":3}}\n'
    )
    shell.run("produce", source, "--json", "-z", compression, stdin=lines)
    copied = shell.run("consume", source, "--json")
    shell.run("produce", copy, "--json", "-z", compression, stdin=copied.encode())

    def content(topic: str) -> list[dict[str, Any]]:
        records = [record | {"topic": ""} for record in shell.json("consume", topic)]
        return sorted(records, key=lambda record: (record["partition"], record["offset"]))

    assert content(copy) == content(source)
    assert [record.get("value") for record in content(copy)] == ["v", None, '{"amount":3}']
    assert content(copy)[1]["key_base64"] == "/w=="


def test_bytes_that_are_no_text_pass_through_unchanged(shell: Shell) -> None:
    shell.run("topic", "create", "binary", "-p", "1")
    shell.run("produce", "binary", stdin=b"\xff\x00\xfe\n")
    shell.run("produce", "binary", "--base64", stdin=b"AAEC\n")
    answer = shell.result("consume", "binary")
    assert answer.stdout == b"\xff\x00\xfe\n\x00\x01\x02\n"
    assert shell.run("consume", "binary", "--base64") == "/wD+\nAAEC\n"


def test_files_are_sent_whole_or_by_lines(shell: Shell, tmp_path: Path) -> None:
    shell.run("topic", "create", "files", "-p", "1")
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    shell.run("produce", "files", str(tmp_path / "a"), str(tmp_path / "b"))
    shell.run("produce", "files", "--whole-files", str(tmp_path / "a"))
    assert [record["value"] for record in shell.json("consume", "files")] == ["1", "2", "3", "1\n2\n"]


def test_a_bad_line_is_named_and_those_before_it_are_sent(shell: Shell) -> None:
    shell.run("topic", "create", "broken-input", "-p", "1")
    error = shell.fail("produce", "broken-input", "--json", stdin=b'{"value":"ok"}\n{"valeu":"x"}\n')
    assert "standard input, line 2: unknown field 'valeu'" in error
    assert shell.run("consume", "broken-input") == "ok\n"


def test_a_range_of_messages_by_offset_and_by_time(shell: Shell) -> None:
    shell.run("topic", "create", "ranges", "-p", "1", "-c", "retention.ms=-1")
    lines = "".join(f'{{"value":"{n}","timestamp":{1_700_000_000_000 + n * 1000}}}\n' for n in range(10))
    shell.run("produce", "ranges", "--json", stdin=lines.encode())
    assert shell.run("consume", "ranges", "--from", "3", "--to", "5").split() == ["3", "4"]
    assert shell.run("consume", "ranges", "--from", "-2").split() == ["8", "9"]
    assert shell.run("consume", "ranges", "--from", "2023-11-14T22:13:27Z").split() == ["7", "8", "9"]
    assert shell.run("consume", "ranges", "--to", "2023-11-14T22:13:22Z").split() == ["0", "1"]
    assert shell.run("consume", "ranges", "--from", "-1h") == ""
    assert shell.run("consume", "ranges", "--from", "end") == ""
    assert shell.run("consume", "ranges", "--from", "100") == ""
    assert "no partition 7" in shell.fail("consume", "ranges", "-p", "7")


def test_follow_prints_what_comes_and_ends_quietly(shell: Shell) -> None:
    shell.run("topic", "create", "followed", "-p", "1")
    shell.run("produce", "followed", stdin=b"before\n")
    follower = shell.popen("consume", "followed", "--follow", "--from", "beginning")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"before\n"
    shell.run("produce", "followed", stdin=b"after\n")
    assert follower.stdout.readline() == b"after\n"
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=60)
    assert follower.returncode == 130
    assert b"Traceback" not in errors


def test_follow_up_to_an_offset_ends_by_itself(shell: Shell) -> None:
    shell.run("topic", "create", "awaited", "-p", "1")
    follower = shell.popen("consume", "awaited", "--follow", "--from", "0", "--to", "2")
    shell.run("produce", "awaited", stdin=b"1\n2\n3\n")
    output, _ = follower.communicate(timeout=60)
    assert (output, follower.returncode) == (b"1\n2\n", 0)


def test_a_reader_that_has_seen_enough_is_no_failure(shell: Shell) -> None:
    shell.run("topic", "create", "long", "-p", "1")
    shell.run("produce", "long", stdin=b"".join(b"%d\n" % n for n in range(50_000)))
    reader = shell.popen("consume", "long")
    assert reader.stdout is not None
    assert reader.stderr is not None
    first = reader.stdout.readline()
    assert first == b"0\n", reader.stderr.read()
    reader.stdout.close()
    assert reader.wait(60) == 0
    assert reader.stderr.read() == b""
    reader.stderr.close()


def test_settings_are_shown_with_their_source_and_changed(shell: Shell) -> None:
    shell.run("topic", "create", "configured", "-p", "1")
    shell.run("config", "alter", "--topic", "configured", "--set", "cleanup.policy=compact")
    shown = {
        entry["name"]: entry for entry in shell.json("config", "describe", "--topic", "configured", "--all")
    }
    assert shown["cleanup.policy"]["value"] == "compact"
    assert shown["cleanup.policy"]["source"] == "DYNAMIC_TOPIC"
    assert shown["retention.bytes"]["source"] == "DEFAULT"
    shell.run("config", "alter", "--topic", "configured", "--delete", "cleanup.policy")
    assert "cleanup.policy" not in shell.run("config", "describe", "--topic", "configured")
    error = shell.fail("config", "alter", "--topic", "absent", "--set", "retention.ms=5")
    assert "UNKNOWN_TOPIC_OR_PART" in error


def test_a_missing_topic_is_one_line(shell: Shell) -> None:
    assert shell.fail("consume", "absent") == "Error: no such topic: absent\n"


@pytest.mark.millrace_only
def test_the_files_of_a_running_broker_can_be_looked_into(shell: Shell) -> None:
    shell.run("topic", "create", "on-disk", "-p", "1")
    shell.run("produce", "on-disk", "-K", ":", stdin=b"key:value\n")
    directory = shell.broker.data_dir / "on-disk-0"
    (row,) = shell.json("log", "dump", "--records", "--only", "record", str(directory))
    assert (row["offset"], row["key"], row["value"]) == (0, "key", "value")
    answer = shell.result("log", "verify", "--deep", str(shell.broker.data_dir))
    told = answer.stdout.decode().splitlines()
    assert answer.returncode == 0, answer
    assert "on-disk-0: not scrubbed yet" in told
    assert all("scrubbed" in line for line in told), "nothing is damaged"


@pytest.mark.millrace_only
def test_a_second_broker_is_refused_and_the_doctor_says_why(shell: Shell, tmp_path: Path) -> None:
    options = ("--data-dir", str(shell.broker.data_dir), "--listen", shell.broker.bootstrap)
    metrics = ("--set", "metrics.listener=127.0.0.1:0")
    findings = {
        finding["check"]: finding["status"]
        for finding in map(json.loads, shell.result("doctor", "--json", *options).stdout.splitlines())
    }
    assert findings["data lock"] == findings["listener PLAINTEXT"] == "FAIL"

    same_directory = ("--data-dir", str(shell.broker.data_dir), "--listen", "127.0.0.1:0")
    assert str(shell.broker.data_dir) in _last_line(shell.result("serve", *same_directory, *metrics))
    same_port = ("--data-dir", str(tmp_path / "other"), "--listen", shell.broker.bootstrap)
    assert "in use" in _last_line(shell.result("serve", *same_port, *metrics))


def _last_line(answer: subprocess.CompletedProcess[bytes]) -> str:
    """The error of a command that failed, behind whatever it logged before."""
    assert answer.returncode == 1, answer
    assert b"Traceback" not in answer.stderr
    line = answer.stderr.decode().splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.mark.timed
def test_the_overview_is_there_at_once() -> None:
    best_ms = 1000.0
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([MILLRACE, "--help"], capture_output=True, check=True)
        best_ms = min(best_ms, (time.perf_counter() - started) * 1000)
    assert best_ms < 150
