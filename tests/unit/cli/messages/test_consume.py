"""`millrace consume`: which offsets are read for which moments, and where it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, TopicPartition

from millrace.cli import clients
from millrace.cli.clients import RequestFailed
from millrace.cli.messages.consume import consume


class Received:
    def __init__(
        self, partition: int, offset: int, value: bytes = b"", error: KafkaError | None = None
    ) -> None:
        self._fields = {
            "topic": "t",
            "partition": partition,
            "offset": offset,
            "timestamp": (1, 1_000 + offset),
            "key": None,
            "value": value,
            "headers": None,
            "error": error,
        }

    def __getattr__(self, name: str) -> Any:
        return lambda: self._fields[name]


class Consumer:
    """Partition 0 has offsets 10 to 14, partition 1 has 0 to 2; times are 1000 and the offset."""

    def __init__(self) -> None:
        self.bounds = {0: (10, 15), 1: (0, 3)}
        self.missing: list[int] = []
        self.failure: KafkaError | None = None
        self.settings: dict[str, Any] = {}
        self.assigned: list[tuple[int, int]] = []
        self.is_closed = False
        self._queue: list[Received] = []

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(self.bounds))})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return self.bounds[place.partition]

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        (place,) = places
        low, high = self.bounds[place.partition]
        offset = max(low, place.offset - 1_000)
        return [SimpleNamespace(error=None, offset=offset if offset < high else -1)]

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = [(place.partition, place.offset) for place in places]
        self._queue = [] if self.failure is None else [Received(1, -1001, error=self.failure)]
        for place in places:
            end = self.bounds[place.partition][1]
            for offset in range(place.offset, end):
                if offset not in self.missing:
                    value = f"{place.partition}:{offset}".encode()
                    self._queue.append(Received(place.partition, offset, value))
            end_of_partition = KafkaError(KafkaError._PARTITION_EOF, "end")
            self._queue.append(Received(place.partition, end, error=end_of_partition))

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        gone = [place.partition for place in places]
        self._queue = [each for each in self._queue if each.partition() not in gone]

    def poll(self, _seconds: float) -> Received | None:
        assert self._queue, "it would wait for ever"
        return self._queue.pop(0)

    def consume(self, count: int, timeout: float) -> list[Received]:
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    fake = Consumer()

    def create(_address: object, settings: dict[str, Any]) -> Consumer:
        fake.settings = settings
        return fake

    monkeypatch.setattr(clients, "consumer", create)
    return fake


def run(*words: str) -> Result:
    return CliRunner().invoke(consume, ["t", *words])


def test_everything_up_to_the_present_end_is_read(consumer: Consumer) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["0:10", "0:11", "0:12", "0:13", "0:14", "1:0", "1:1", "1:2"]
    assert result.stderr == "read 8 messages from t\n"
    assert consumer.is_closed
    assert consumer.settings["isolation.level"] == "read_committed"


@pytest.mark.parametrize(
    "words, read",
    [
        (("-p", "1"), ["1:0", "1:1", "1:2"]),
        (("-p", "0", "--from", "13"), ["0:13", "0:14"]),
        # Below the beginning there is nothing.
        (("-p", "0", "--from", "3", "--to", "12"), ["0:10", "0:11"]),
        (("--from", "end"), []),
        (("-p", "0", "--from", "12", "--to", "12"), []),
        (("-p", "0", "--to", "99"), ["0:10", "0:11", "0:12", "0:13", "0:14"]),
        (("-p", "0", "--from", "1970-01-01T00:00:01.013Z"), ["0:13", "0:14"]),
        # A time behind the last message is the end.
        (("-p", "0", "--from", "2000-01-01T00:00:00Z"), []),
        (("-n", "3"), ["0:10", "0:11", "0:12"]),
    ],
)
@pytest.mark.usefixtures("consumer")
def test_moments_and_limits_decide_what_is_read(words: tuple[str, ...], read: list[str]) -> None:
    result = run(*words, "-q")
    assert result.exit_code == 0, result.output
    assert result.output.split() == read


def test_offsets_without_a_message_do_not_keep_it_from_ending(consumer: Consumer) -> None:
    consumer.missing = [13, 14]
    assert run("-p", "0", "-q").output.split() == ["0:10", "0:11", "0:12"]


@pytest.mark.usefixtures("consumer")
def test_messages_are_printed_in_the_form_that_is_asked_for() -> None:
    words = ("-p", "1", "-n", "1", "-q")
    assert run(*words, "--offsets", "--separator", " | ").output == "1:0 | 1:0\n"
    assert run(*words, "-t", "{partition}/{offset}={value}").output == "1/0=1:0\n"
    document = orjson.loads(run(*words, "--json").output)
    assert (document["partition"], document["offset"], document["value"]) == (1, 0, "1:0")


def test_following_begins_at_the_end_and_may_stop_at_an_offset(consumer: Consumer) -> None:
    run("-p", "0", "--follow", "--from", "12", "--to", "14", "-q")
    assert consumer.assigned == [(0, 12)]
    assert run("--follow", "--to", "end").exit_code == 2


@pytest.mark.usefixtures("consumer")
@pytest.mark.parametrize(
    "words, reason",
    [
        (("-p", "0,7"), "t has 2 partitions and no partition 7"),
        (("--format", "template"), "--format template needs --template"),
    ],
)
def test_what_cannot_be_read_is_told(words: tuple[str, ...], reason: str) -> None:
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert reason in result.output


@pytest.mark.usefixtures("consumer")
def test_a_topic_that_is_not_there_is_told_and_never_created() -> None:
    result = CliRunner().invoke(consume, ["nowhere"])
    assert result.exit_code == 1
    assert result.output == "Error: no such topic: nowhere\n"


def test_reading_needs_no_permission_for_a_group(consumer: Consumer) -> None:
    consumer.failure = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not allowed")
    assert run("-p", "1").stdout == "1:0\n1:1\n1:2\n"


def test_an_error_of_a_partition_ends_the_command(consumer: Consumer) -> None:
    consumer.failure = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")
    result = run("-p", "1")
    assert isinstance(result.exception, RequestFailed)
    assert str(result.exception) == "t-1: not allowed (TOPIC_AUTHORIZATION_FAILED)"
    assert consumer.is_closed
