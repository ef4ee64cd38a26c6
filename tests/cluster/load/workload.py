"""All clients at once on a cluster, and the judgement of what they were told."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Final

from millrace.sim.checkers import violations
from millrace.sim.history import FinalRead, Happened
from tests.cluster.cluster import Cluster
from tests.cluster.load.final import Readings, doubled, read_copy
from tests.cluster.load.java import JavaLoad
from tests.cluster.load.readers import Member, Reader
from tests.cluster.load.recorder import PATIENCE_S, Client, Recorder, now
from tests.cluster.load.writers import TransactionalWriter, Writer
from tests.harness.process import eventually

PARTITIONS: Final = 3
JAVA_MEMBERS: Final = 2
WRITERS: Final = ("writer", "java writer")
MORE: Final = {
    "writer": 30,
    "java writer": 30,
    "transactions": 2,
    "copies": 2,
    "reader": 30,
    "group": 30,
    "java group": 30,
}
"""What each kind of client does at least before it counts as getting on."""
_SEEDS: Final = itertools.count(1)


class Workload:
    """On a topic of its own: librdkafka's idempotent and transactional producers and Java's idempotent one; a
    consumer, a group of the new protocol by librdkafka and a classic one by Java; and Java's copier into a
    second topic. `end` is for whatever has happened: nobody is left behind."""

    def __init__(self, cluster: Cluster, java: JavaLoad | None, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.copies = f"{topic}-copies"
        self.group = f"{topic}-group"
        self.java_group = f"{topic}-java-group"
        self.recorder = recorder = Recorder()
        self._java = java
        self._last = "the start"
        bootstrap = cluster.bootstrap
        where = (recorder, bootstrap, topic, PARTITIONS)
        self.writer = Writer("writer", *where)
        self.transactional = TransactionalWriter(f"{topic}-tx", *where, seed=next(_SEEDS))
        self.members = [Member(f"member-{number}", *where, self.group) for number in range(2)]
        self.reader = Reader("reader", *where, "unused")

    @property
    def clients(self) -> list[Client]:
        return [self.writer, self.transactional, *self.members, self.reader]

    def start(self) -> None:
        self.cluster.create_topic(self.topic, PARTITIONS)
        self.cluster.create_topic(self.copies, PARTITIONS)
        for client in self.clients:
            client.start()
        if self._java is not None:
            self._java.begin(
                self.recorder,
                self.cluster.bootstrap,
                self.topic,
                PARTITIONS,
                group=self.java_group,
                members=JAVA_MEMBERS,
                copies=self.copies,
            )

    def end(self) -> None:
        for client in self.clients:
            client.stopping.set()
        if self._java is not None:
            self._java.stop_writers()
            self._java.stop_readers()

    def happened(self, what: str) -> None:
        self._last = what
        self.recorder.note(Happened(at=now(), what=what))

    def goes_on(self, *, writers_only: bool = False) -> None:
        """Wait until every kind of client has got on: nothing stands still. `writers_only`: where a
        transaction's coordinator cannot reach a leader, transactions wait, and readers of committed records
        with them."""
        before = self._progress()
        wanted = {kind: before[kind] + MORE[kind] for kind in before if kind in WRITERS or not writers_only}

        took: dict[str, int] = {}
        began = now()

        def is_further() -> bool:
            present = self._progress()
            for kind, count in wanted.items():
                if present[kind] >= count:
                    took.setdefault(kind, now() - began)
            return bool(self.failures()) or len(took) == len(wanted)

        try:
            eventually(is_further, PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{self._progress()} instead of {wanted}; {self._troubles()}") from None
        # For whoever reads the output of a test: who waited for how long.
        print(f"after {self._last!r} milliseconds until they got on: {took}")
        assert not self.failures(), self.failures()[:5]

    def _troubles(self) -> dict[str, list[str]]:
        """What clients were told last, and got over."""
        found = {client.name: client.troubles[-3:] for client in self.clients if client.troubles}
        return found if self._java is None else found | {"java": self._java.troubles[-5:]}

    def _progress(self) -> dict[str, int]:
        of_librdkafka = {
            "writer": self.writer.acked_count,
            "transactions": self.transactional.transactions.committed_count,
            "reader": len(self.reader.seen),
            "group": sum(len(member.seen) for member in self.members),
        }
        java = self._java
        if java is None:
            return of_librdkafka
        return of_librdkafka | {
            "java writer": java.acked_count,
            "java group": len(java.seen[self.java_group]),
            "copies": java.copies_count,
        }

    def failures(self) -> list[str]:
        """What no client should have been told, whatever happened: they send again until it works."""
        found = [failure for client in self.clients for failure in client.failures]
        return found if self._java is None else found + self._java.failures

    def check(self) -> None:
        """Bring all clients to their end, read everything, and let the checkers judge."""
        for writer in (self.writer, self.transactional):
            writer.stop()
        if self._java is not None:
            self._java.stop_writers()
        readings = Readings(self.cluster.bootstrap)
        final = self._read(readings, self.topic)
        self._until_all_is_read(final)
        for client in (*self.members, self.reader):
            client.stop()
        if self._java is not None:
            self._java.stop_readers()
        assert not self.failures(), self.failures()[:5]
        final += self._read(readings, self.copies)
        readings.close()
        self._read_copies(final)
        self.recorder.note(*final)
        found = violations(self.recorder.history())
        assert not found, "\n".join(
            [*(str(each) for each in found[:20]), *self._origins(final), str(self._troubles())]
        )

    def _origins(self, final: list[FinalRead]) -> list[str]:
        """Of what is there twice, for whoever has to find out why: by the first broker's copy."""
        data_dir = next(iter(self.cluster.brokers.values())).data_dir
        lines = [line for look in final for line in doubled(data_dir, look)[:10]]
        # Readers of everything and readers of what is committed found the same.
        return list(dict.fromkeys(lines))

    def _read(self, readings: Readings, topic: str) -> list[FinalRead]:
        return [look for partition in range(PARTITIONS) for look in readings.partition(topic, partition)]

    def _until_all_is_read(self, final: list[FinalRead]) -> None:
        """Readers get their time; what they have not seen by then, the checkers name."""
        committed = {
            (look.partition, offset) for look in final if look.committed_only for offset, _ in look.records
        }

        def is_all_read() -> bool:
            everybody = [self.reader.seen, {}]
            for member in self.members:
                everybody[-1].update(member.seen)
            if self._java is not None:
                everybody += self._java.seen.values()
            return all(committed <= set(seen) for seen in everybody) or bool(self.failures())

        with contextlib.suppress(AssertionError):
            eventually(is_all_read, PATIENCE_S, pause_s=0.2)

    def _read_copies(self, final: list[FinalRead]) -> None:
        """Of each partition all copies, when followers have had the time to get the last of it."""
        for look in final:
            if not look.committed_only:
                with contextlib.suppress(AssertionError):
                    eventually(partial(self.cluster.have_same_log, look.topic, look.partition), PATIENCE_S)
                for node_id, broker in self.cluster.brokers.items():
                    self.recorder.note(read_copy(broker.data_dir, node_id, look))
