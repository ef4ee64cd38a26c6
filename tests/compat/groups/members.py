"""Group members as tests handle them: processes of the Python clients, and threads of one JVM."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, locate

Partition = tuple[str, int]
Event = dict[str, Any]
_END_DEADLINE_S: Final = 60.0


class Member:
    """What every member has told so far, in its order. Subclasses say how it is started and ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.failed_at: list[float] = []
        self._changed = threading.Condition()

    def take(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def told(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event["event"] == kind]

    @property
    def owned(self) -> set[Partition]:
        """The partitions that the member believes to own now."""
        owned: set[Partition] = set()
        for event in list(self.events):
            named = {(str(topic), int(number)) for topic, number in event.get("partitions", ())}
            match event["event"]:
                case "assigned":
                    owned |= named
                case "revoked" | "lost":
                    owned -= named
                case "leaving":
                    owned = set()
                case _:
                    pass
        return owned

    @property
    def processed_count(self) -> int:
        return sum(len(event["records"]) for event in self.told("records"))

    def wait_for(self, holds: Callable[[], bool], deadline_s: float = 30.0) -> None:
        with self._changed:
            if not self._changed.wait_for(holds, deadline_s):
                raise AssertionError(f"{self.name}: not within {deadline_s} s; last: {self.events[-5:]}")

    def stop(self) -> None:
        raise AssertionError("a subclass knows how to stop")

    def fail(self) -> None:
        """End without a word to anybody: what it had not committed is read again by others."""
        raise AssertionError("a subclass knows how to fail")

    def end(self) -> None:
        """For the end of a test: leave nothing behind."""
        raise AssertionError("a subclass knows how to end")


class PythonMember(Member):
    def __init__(
        self, name: str, client: str, bootstrap: str, topics: Sequence[str], config: Mapping[str, Any]
    ) -> None:
        super().__init__(name)
        arguments = {
            "client": client,
            "bootstrap": bootstrap,
            "topics": list(topics),
            "config": dict(config),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.groups.member", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=PROJECT_ROOT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.take(json.loads(line))

    @override
    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"stop\n")
        self._process.stdin.flush()
        assert self._process.wait(_END_DEADLINE_S) == 0, f"{self.name} ended with {self._process.returncode}"
        self._reader.join(_END_DEADLINE_S)

    @override
    def fail(self) -> None:
        self.failed_at.append(time.monotonic())
        self._process.kill()
        self._process.wait(_END_DEADLINE_S)
        self._reader.join(_END_DEADLINE_S)

    def freeze(self) -> None:
        self.failed_at.append(time.monotonic())
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @override
    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_END_DEADLINE_S)
        self._reader.join(_END_DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class JavaMember(Member):
    def __init__(self, name: str, host: JavaMembers) -> None:
        super().__init__(name)
        self._host = host
        self._is_over = False

    @override
    def stop(self) -> None:
        self._host.send({"op": "stop", "member": self.name})
        self.wait_for(lambda: self._has_ended("closed"), _END_DEADLINE_S)

    @override
    def fail(self) -> None:
        self.failed_at.append(time.monotonic())
        self._host.send({"op": "vanish", "member": self.name})
        self.wait_for(lambda: self._has_ended("closed"), _END_DEADLINE_S)

    def hang(self, duration_ms: int) -> None:
        """Heartbeats go on, but the application does not ask for records."""
        self.failed_at.append(time.monotonic())
        self._host.send({"op": "hang", "member": self.name, "ms": duration_ms})

    @override
    def end(self) -> None:
        if not self._has_ended("closed") and not self._has_ended("failed"):
            self._host.send({"op": "vanish", "member": self.name})

    def _has_ended(self, how: str) -> bool:
        return any(event["event"] == how for event in self.events)


class JavaMembers:
    """The JVM with all Java members of a session."""

    def __init__(self, directory: Path, distribution: KafkaDistribution | None = None) -> None:
        self._distribution = distribution or locate()
        self._errors_path = directory / "group-host.err"
        self._members: dict[str, JavaMember] = {}
        self._answers: dict[int, Event] = {}
        self._answered = threading.Condition()
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, name: str, bootstrap: str, subscription: Mapping[str, Any], config: Mapping[str, Any]
    ) -> JavaMember:
        """`subscription` holds `topics`, `pattern` (Java's) or `re2j` (the broker's)."""
        assert name not in self._members, name
        member = self._members[name] = JavaMember(name, self)
        defaults = {
            "bootstrap.servers": bootstrap,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "fetch.max.wait.ms": "100",
            "max.poll.records": "20",
            "metadata.max.age.ms": "1000",
            "retry.backoff.ms": "20",
        }
        self.send({"op": "start", "member": name, "config": defaults | dict(config)} | dict(subscription))
        return member

    def call(self, op: str, bootstrap: str, config: Mapping[str, Any], **arguments: Any) -> Event:
        """One call on a consumer of its own: commit, committed or position."""
        ident = next(self._ids)
        command = {"op": op, "id": ident, "config": {"bootstrap.servers": bootstrap} | dict(config)}
        self.send(command | arguments)
        with self._answered:
            assert self._answered.wait_for(lambda: ident in self._answers, 60), f"no answer to {command}"
            return self._answers.pop(ident)

    def send(self, command: Mapping[str, Any]) -> None:
        if self._process is None:
            self._launch()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_END_DEADLINE_S)
        self._reader.join(_END_DEADLINE_S)
        self._process.stdout.close()

    def _launch(self) -> None:
        with self._errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    self._distribution.java,
                    "-Xmx512m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    self._distribution.classpath,
                    str(Path(__file__).with_name("GroupHost.java")),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="java members", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "answer" in event:
                with self._answered:
                    self._answers[event["answer"]] = event
                    self._answered.notify_all()
            else:
                self._members[event["member"]].take(event)
