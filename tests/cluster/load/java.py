"""Kafka's Java clients as load, in a JVM of their own that lives as long as the cluster: a writer, a classic
group, and a copier that reads and writes in transactions."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from millrace.sim.history import (
    Acked,
    Assigned,
    Copying,
    OffsetCommitted,
    OffsetFetched,
    Polled,
    Sent,
    SequenceBroken,
    TransactionEnded,
    TransactionRead,
)
from millrace.wire.error_codes import ErrorCode
from tests.cluster.load.recorder import PATIENCE_S, Recorder, now
from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution

_SOURCE: Final = PROJECT_ROOT / "tests" / "cluster" / "java" / "ClusterLoad.java"


class JavaLoad:
    """Writers and group members of one scenario at a time. What they say becomes events."""

    def __init__(self, distribution: KafkaDistribution, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._errors_path = directory / "java-load.err"
        with self._errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    distribution.java,
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                    "-cp",
                    distribution.classpath,
                    str(_SOURCE),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._recorder = Recorder()
        self._said: queue.Queue[str] = queue.Queue()
        self.failures: list[str] = []
        self.troubles: list[str] = []
        self.acked_count = 0
        self.copies_count = 0
        """Of transactions that were committed."""
        self.seen: dict[str, dict[tuple[int, int], None]] = {}
        """Partition and offset of each record that the group and the copier have read."""
        self._takes: Mapping[str, Callable[[list[str]], None]] = {
            "sent": self._sent,
            "acked": self._acked,
            "failed": self._failed,
            "assigned": self._assigned,
            "fetched": self._fetched,
            "polled": self._polled,
            "committed": self._committed,
            "depends": self._depends,
            "ended": self._ended,
            "trouble": self._trouble,
        }
        self._thread = threading.Thread(target=self._listen, name="java-load", daemon=True)
        self._thread.start()

    def begin(
        self,
        recorder: Recorder,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        group: str,
        members: int,
        copies: str,
        pause_ms: int = 5,
    ) -> None:
        """One of each, from now on noted by this recorder. The copier is named after its target."""
        self._recorder = recorder
        self.failures, self.troubles = [], []
        self.acked_count = self.copies_count = 0
        self.seen = {group: {}, copies: {}}
        recorder.note(Copying(at=now(), source=topic, target=copies))
        self._say(f"write java-writer {bootstrap} {topic} {partitions} {pause_ms}")
        self._say(f"copy {copies} {bootstrap} {topic} {partitions} {copies}")
        for number in range(members):
            self._say(f"read java-member-{number} {bootstrap} {group} {topic}")

    def stop_writers(self) -> None:
        """Wait until all that was sent has been answered."""
        self._say("stop-writers")
        self._await("writers")

    def stop_readers(self) -> None:
        self._say("stop-readers")
        self._await("readers")

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def _await(self, what: str) -> None:
        said = self._said.get(timeout=2 * PATIENCE_S)
        assert said == what, f"{said}: {self._errors_path.read_text()[-2000:]}"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *fields = line.decode().rstrip("\n").split("\t")
            if kind == "stopped":
                self._said.put(fields[0])
            elif kind in self._takes:
                self._takes[kind](fields)
        self._said.put("the JVM has ended")

    # What they say, line by line; ClusterLoad.java names the fields.

    def _sent(self, fields: list[str]) -> None:
        at, name, topic, partition, value, transaction = fields
        self._recorder.note(
            Sent(
                at=int(at),
                producer=name,
                topic=topic,
                partition=int(partition),
                value=value,
                transaction=int(transaction),
            )
        )

    def _acked(self, fields: list[str]) -> None:
        at, name, topic, partition, value, transaction, offset = fields
        if transaction == "0":
            self.acked_count += 1
        self._recorder.note(
            Acked(
                at=int(at),
                producer=name,
                topic=topic,
                partition=int(partition),
                value=value,
                offset=int(offset),
                transaction=int(transaction),
            )
        )

    def _failed(self, fields: list[str]) -> None:
        at, name, topic, partition, value, error = fields
        self.failures.append(f"{name}: {value}: {error}")
        if "OutOfOrderSequence" in error:
            self._recorder.note(
                SequenceBroken(
                    at=int(at),
                    producer=name,
                    topic=topic,
                    partition=int(partition),
                    code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                )
            )

    def _assigned(self, fields: list[str]) -> None:
        at, group, topic, member, generation, partitions = fields
        self._recorder.note(
            Assigned(
                at=int(at),
                group=group,
                member=member,
                generation=int(generation),
                partitions=tuple((topic, int(number)) for number in partitions.split(",") if number),
            )
        )

    def _fetched(self, fields: list[str]) -> None:
        at, group, topic, partition, offset, asked_at = fields
        self._recorder.note(
            OffsetFetched(
                at=int(at),
                group=group,
                topic=topic,
                partition=int(partition),
                offset=int(offset),
                asked_at=int(asked_at),
            )
        )

    def _polled(self, fields: list[str]) -> None:
        at, name, topic, session, partition, start, next_offset, seen = fields
        pairs = (each.split("=", 1) for each in seen.split(";"))
        records = tuple((int(offset), value) for offset, value in pairs)
        places = ((int(partition), offset) for offset, _ in records)
        self.seen[name.partition("/")[0]].update(dict.fromkeys(places))
        self._recorder.note(
            Polled(
                at=int(at),
                consumer=name,
                session=int(session),
                topic=topic,
                partition=int(partition),
                committed_only=True,
                start=int(start),
                records=records,
                next_offset=int(next_offset),
            )
        )

    def _committed(self, fields: list[str]) -> None:
        at, group, topic, member, generation, partition, offset, asked_at = fields
        self._recorder.note(
            OffsetCommitted(
                at=int(at),
                group=group,
                member=member,
                generation=int(generation),
                topic=topic,
                partition=int(partition),
                offset=int(offset),
                asked_at=int(asked_at),
            )
        )

    def _depends(self, fields: list[str]) -> None:
        at, name, transaction, values = fields
        self._recorder.note(
            TransactionRead(
                at=int(at), producer=name, transaction=int(transaction), values=tuple(values.split(";"))
            )
        )

    def _ended(self, fields: list[str]) -> None:
        at, name, transaction, outcome = fields
        if outcome == "commit":
            self.copies_count += 1
        self._recorder.note(
            TransactionEnded(at=int(at), producer=name, transaction=int(transaction), outcome=outcome)
        )

    def _trouble(self, fields: list[str]) -> None:
        self.troubles.append(" ".join(fields))
