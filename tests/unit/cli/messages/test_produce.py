"""`millrace produce`: how input becomes messages, and what is said of those that were not sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError

from millrace.cli import clients
from millrace.cli.messages.produce import ERRORS_SHOWN_MAX, produce
from millrace.cli.messages.records import BadLine

Delivery = Callable[[KafkaError | None, Any], None]


class Producer:
    """Confirms messages when it is flushed, unless their value says that they fail."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []
        self.fulls = 0
        self._waiting: list[tuple[Delivery, bytes | None]] = []

    def produce(self, topic: str, *, on_delivery: Delivery, **message: Any) -> None:
        if self.fulls:
            self.fulls -= 1
            raise BufferError
        self.sent.append({"topic": topic, **message})
        self._waiting.append((on_delivery, message["value"]))

    def poll(self, _seconds: float) -> None:
        """Nothing is confirmed before the flush."""

    def flush(self, _seconds: float) -> None:
        # One at a time: a flush may end before all is known.
        on_delivery, value = self._waiting.pop(0)
        error = KafkaError(KafkaError._MSG_TIMED_OUT, "too late") if value == b"fail" else None
        on_delivery(error, SimpleNamespace(topic=lambda: "t"))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    fake = Producer()

    def create(_address: object, settings: dict[str, Any]) -> Producer:
        fake.settings = settings
        return fake

    monkeypatch.setattr(clients, "producer", create)
    return fake


def run(*words: str, text: bytes = b"") -> Result:
    return CliRunner().invoke(produce, ["t", *words], input=text)


def test_each_line_is_a_message(producer: Producer) -> None:
    result = run(text=b"one\r\ntwo\n\nthree")
    assert [each["value"] for each in producer.sent] == [b"one", b"two", b"", b"three"]
    assert all(each["key"] is None and "partition" not in each for each in producer.sent)
    assert result.stderr == "sent 4 messages to t\n"
    assert run("-q", text=b"one").output == ""


def test_keys_headers_and_partition_come_from_options(producer: Producer) -> None:
    run("-K", "\\t", "-H", "a=1", "-p", "3", text=b"key\tvalue\n")
    (message,) = producer.sent
    assert (message["key"], message["value"], message["partition"]) == (b"key", b"value", 3)
    assert message["headers"] == [("a", b"1")]
    run("-k", "fixed", text=b"value\n")
    assert producer.sent[-1]["key"] == b"fixed"


def test_json_lines_say_all_and_partitions_can_be_chosen_anew(producer: Producer) -> None:
    line = b'{"key": "k", "value": "v", "partition": 2, "timestamp": 5}\n'
    run("--json", text=line)
    assert (producer.sent[-1]["partition"], producer.sent[-1]["timestamp"]) == (2, 5)
    run("--json", "--repartition", text=line)
    assert "partition" not in producer.sent[-1]
    run("--json", "-p", "0", text=line)
    assert producer.sent[-1]["partition"] == 0


def test_a_whole_file_is_one_message(producer: Producer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"two\nlines\n")
    run("--whole-files", str(path))
    assert [each["value"] for each in producer.sent] == [b"two\nlines\n"]


def test_acks_decide_whether_the_producer_is_idempotent(producer: Producer) -> None:
    run("-z", "lz4", text=b"x")
    assert producer.settings["acks"] == "all"
    assert producer.settings["enable.idempotence"] is True
    assert producer.settings["compression.type"] == "lz4"
    run("-a", "1", text=b"x")
    assert producer.settings["enable.idempotence"] is False


def test_a_full_queue_is_waited_for(producer: Producer) -> None:
    producer.fulls = 3
    assert run(text=b"one\n").exit_code == 0
    assert len(producer.sent) == 1


@pytest.mark.usefixtures("producer")
def test_messages_that_were_not_sent_are_counted_and_the_first_shown() -> None:
    result = run(text=b"fail\n" * 7 + b"good\n")
    assert result.exit_code == 1
    assert result.stderr.count("Error: t: too late (_MSG_TIMED_OUT)") == ERRORS_SHOWN_MAX
    assert result.stderr.endswith("Error: 7 of 8 messages were not sent\n")


def test_what_came_before_a_bad_line_is_sent_and_the_line_named(producer: Producer) -> None:
    result = run("--json", text=b'{"value": "v"}\nhumbug\n')
    assert isinstance(result.exception, BadLine)
    assert "line 2: " in str(result.exception)
    assert [each["value"] for each in producer.sent] == [b"v"]


@pytest.mark.usefixtures("producer")
@pytest.mark.parametrize(
    "words",
    [("--json", "--base64"), ("-K", ":", "-k", "x"), ("--whole-files",), ("-K", ":", "--whole-files", "f")],
)
def test_options_that_contradict_each_other_are_wrong_usage(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2
