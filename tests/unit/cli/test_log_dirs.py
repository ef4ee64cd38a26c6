"""`millrace log-dirs describe`: a line for each directory or replica, for people and for programs."""

from __future__ import annotations

from collections.abc import Collection

import orjson
import pytest
from click.testing import CliRunner

from millrace.cli import data_directories
from millrace.cli.data_directories import Directory, HeldReplica
from millrace.cli.log_dirs import log_dirs
from millrace.cli.options import BrokerAddress

FOUND = [
    Directory(
        broker=1,
        path="/d1",
        error=None,
        total_bytes=1000,
        free_bytes=400,
        replicas=[
            HeldReplica(1, "/d1", "orders", 0, 10, 0, False),
            HeldReplica(1, "/d1", "orders", 1, 5, 7, True),
        ],
    ),
    Directory(broker=2, path="/d2", error="offline", total_bytes=-1, free_bytes=-1),
]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    def read(address: BrokerAddress, brokers: Collection[int], topics: Collection[str]) -> list[Directory]:
        calls.append((address.bootstrap, tuple(brokers), tuple(topics)))
        return FOUND

    monkeypatch.setattr(data_directories, "read", read)
    return calls


def test_directories_are_shown_with_their_state_and_space(asked: list[tuple[object, ...]]) -> None:
    words = ["describe", "-b", "h:1", "--broker", "1", "--broker", "2", "--topic", "orders"]
    result = CliRunner().invoke(log_dirs, words)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines == [
        ["BROKER", "DIRECTORY", "STATE", "REPLICAS", "ARRIVING", "BYTES", "FREE", "TOTAL"],
        ["1", "/d1", "online", "1", "1", "15", "400", "1000"],
        ["2", "/d2", "offline", "0", "0", "0", "-1", "-1"],
    ]
    assert asked == [("h:1", (1, 2), ("orders",))]


def test_replicas_have_a_line_each_and_say_which_arrive() -> None:
    result = CliRunner().invoke(log_dirs, ["describe", "--partitions"])
    assert [line.split() for line in result.output.splitlines()] == [
        ["BROKER", "DIRECTORY", "TOPIC", "PARTITION", "BYTES", "LAG", "STATE"],
        ["1", "/d1", "orders", "0", "10", "0"],
        ["1", "/d1", "orders", "1", "5", "7", "arriving"],
    ]


def test_programs_get_an_object_on_each_line() -> None:
    result = CliRunner().invoke(log_dirs, ["describe", "--json"])
    assert [orjson.loads(line) for line in result.output.splitlines()] == [each.summary() for each in FOUND]
    result = CliRunner().invoke(log_dirs, ["describe", "--json", "--partitions"])
    replicas = [orjson.loads(line) for line in result.output.splitlines()]
    assert [each["is_arriving"] for each in replicas] == [False, True]
