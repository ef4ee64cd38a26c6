"""A broker with short group time-outs, and the examples as programs that can be made to die at a step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import broker_class
from tests.harness.process import BrokerProcess
from tools.kafka_distribution import PROJECT_ROOT

SETTINGS: Final = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
SESSION_MS: Final = 1_000
KILLED: Final = -9


class Example:
    """One run of an example."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_it_died(self) -> None:
        assert self._process.wait(30) == KILLED, "it came to its end instead of dying at the step"

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        self.ask_to_stop()
        assert self._process.wait(30) == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait(30)


StartExample = Callable[..., Example]


@pytest.fixture(scope="package")
def broker(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = broker_class(against)(tmp_path_factory.mktemp("broker"), SETTINGS)
    process.start()
    yield process
    process.end()


@pytest.fixture
def start_example(broker: BrokerProcess) -> Iterator[StartExample]:
    started: list[Example] = []

    def start(
        name: str, topic: str, output: Path, *, group: str, die_at: str | None = None, die_after: int = 0
    ) -> Example:
        environment = dict(os.environ)
        if die_at is not None:
            environment |= {"EXAMPLE_DIE_AT": die_at, "EXAMPLE_DIE_AFTER": str(die_after)}
        words = [sys.executable, str(PROJECT_ROOT / "examples" / f"{name}.py")]
        words += ["--bootstrap", broker.bootstrap, "--topic", topic, "--group", group]
        words += ["--output", str(output), "--idle", "60", "--session-ms", str(SESSION_MS)]
        example = Example(subprocess.Popen(words, env=environment, start_new_session=True))
        started.append(example)
        return example

    yield start
    for example in started:
        example.end()
