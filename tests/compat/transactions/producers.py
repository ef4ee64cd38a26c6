"""Transactional producers as tests handle them: of three libraries, in processes that can be killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution

CLIENTS: Final = ("librdkafka", "java", "aiokafka")
_ANSWER_S: Final = 60.0
_END_S: Final = 60.0
_names: Final = itertools.count(1)

Answer = dict[str, Any]
Record = tuple[str, int, str]
"""Topic, partition, value."""
Offset = tuple[str, int, int]
"""Topic, partition, the next offset to read."""

# What the libraries call it when a newer producer has the transactional id.
FENCED: Final = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "ProducerFenced",
    "ProducerFencedException",
    "InvalidProducerEpoch",
    "InvalidProducerEpochException",
}


class Refused(Exception):
    """A client's call failed; `error` is the name that the client gives to it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer['error']}: {answer.get('message')}")
        self.error = str(answer["error"])


class ProducerDied(Exception):
    """The process ended before it answered."""


class Host:
    """One process with producers of one or more kinds."""

    def __init__(self, command: Sequence[str], errors_path: Path) -> None:
        self._command = list(command)
        self._errors_path = errors_path
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def send(self, command: Mapping[str, Any]) -> Future[Answer]:
        """The future of the answer."""
        with self._lock:
            if self._process is None:
                self._launch()
            assert self._process is not None
            assert self._process.stdin is not None
            ident, answer = next(self._ids), Future[Answer]()
            self._waiting[ident] = answer
            self._process.stdin.write(json.dumps({"id": ident, **command}).encode() + b"\n")
            self._process.stdin.flush()
            return answer

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self.close()

    def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._reader is not None
        self._process.stdin.close()
        self._process.wait(_END_S)
        self._reader.join(_END_S)
        self._process.stdout.close()
        self._process = None

    def _launch(self) -> None:
        with self._errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=PROJECT_ROOT,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["answer"]).set_result(answer)
        for unanswered in list(self._waiting.values()):
            unanswered.set_exception(ProducerDied())
        self._waiting.clear()


def python_host(directory: Path) -> Host:
    return Host([sys.executable, "-m", "tests.compat.transactions.worker"], directory / "worker.err")


def java_host(directory: Path, distribution: KafkaDistribution) -> Host:
    words = [distribution.java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    words += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", distribution.classpath]
    return Host([*words, str(Path(__file__).with_name("TransactionHost.java"))], directory / "java.err")


class Producer:
    """One transactional producer. Calls wait for their answer, except for those through `start`."""

    def __init__(self, host: Host, kind: str, bootstrap: str, ident: str, timeout_ms: int) -> None:
        self.name = f"{kind}-{next(_names)}"
        self.ident = ident
        self._host = host
        config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": ident,
            "transaction.timeout.ms": timeout_ms,
        }
        host.send({"op": "open", "producer": self.name, "kind": kind, "config": config})

    def start(self, op: str, **arguments: Any) -> Future[Answer]:
        return self._host.send({"op": op, "producer": self.name, **arguments})

    def call(self, op: str, **arguments: Any) -> Answer:
        answer = self.start(op, **arguments).result(_ANSWER_S)
        if "error" in answer:
            raise Refused(answer)
        return answer

    def init(self) -> None:
        self.call("init")

    def begin(self) -> None:
        self.call("begin")

    def send(self, *records: Record) -> None:
        self.call("send", records=records)

    def flush(self) -> None:
        self.call("flush")

    def offsets(self, group: str, *offsets: Offset) -> None:
        self.call("offsets", group=group, offsets=offsets)

    def commit(self) -> None:
        self.call("commit")

    def abort(self) -> None:
        self.call("abort")

    def close(self) -> None:
        self.call("close")

    def vanish(self) -> None:
        """End without a word to the broker."""
        self.call("vanish")
        if self.name.startswith("java"):
            return
        self._host.kill()

    def write(self, *records: Record) -> None:
        """A whole transaction, committed."""
        self.begin()
        self.send(*records)
        self.commit()
