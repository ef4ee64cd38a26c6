"""librdkafka's consumers: one by itself, and members of a group.

There is no copier: with librdkafka, a producer that sends offsets to a transaction may wait for ever when the
group's coordinator has moved (its issues 5456 and 5511)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from typing_extensions import override

from millrace.sim.history import OffsetCommitted, OffsetFetched, Polled
from tests.cluster.load.recorder import PATIENCE_S, Client, Recorder, now
from tests.cluster.load.writers import QUICK

BATCH: Final = 200
WAIT_S: Final = 0.1
_CALL_S: Final = 10.0


class Reader(Client):
    """Reads all partitions from their beginning, committed records only."""

    def __init__(
        self, name: str, recorder: Recorder, bootstrap: str, topic: str, partitions: int, group: str
    ) -> None:
        super().__init__(name, recorder)
        self.topic = topic
        self.partitions = partitions
        self.consumer: Any = confluent_kafka.Consumer(self.config(bootstrap, group))
        self.session = 0
        self.positions: dict[int, int] = {}
        self.seen: dict[tuple[int, int], None] = {}
        """Partition and offset of each record that was read."""

    def config(self, bootstrap: str, group: str) -> dict[str, Any]:
        return {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 200,
            "fetch.error.backoff.ms": 20,
        }

    @override
    def run(self) -> None:
        try:
            self.begin()
            while not self.stopping.is_set():
                self.turn()
        finally:
            self.consumer.close()

    def begin(self) -> None:
        self.begin_at(dict.fromkeys(range(self.partitions), 0))

    def turn(self) -> None:
        self.take(self.poll())

    def begin_at(self, positions: dict[int, int]) -> None:
        self.session += 1
        self.positions = dict(positions)
        self.consumer.assign(
            [TopicPartition(self.topic, partition, offset) for partition, offset in positions.items()]
        )

    def poll(self, most: int = BATCH) -> dict[int, list[tuple[int, str]]]:
        """Offset and value of what came, by partition."""
        found: dict[int, list[tuple[int, str]]] = {}
        for message in self.consumer.consume(most, timeout=WAIT_S):
            error = message.error()
            if error is None:
                record = (message.offset(), message.value().decode())
                found.setdefault(message.partition(), []).append(record)
            elif error.fatal() or error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                # A position that was given out must never be called unknown.
                self.failures.append(f"{self.name}: {error}")
        return found

    def take(self, found: dict[int, list[tuple[int, str]]]) -> dict[int, int]:
        """Note what came; the new positions."""
        moved = {}
        for partition, records in found.items():
            if partition not in self.positions:
                # Fetched for an assignment that has ended since.
                continue
            start, moved[partition] = self.positions[partition], records[-1][0] + 1
            self.positions[partition] = moved[partition]
            self.seen.update(dict.fromkeys((partition, offset) for offset, _ in records))
            self.note(
                Polled(
                    at=now(),
                    consumer=self.name,
                    session=self.session,
                    topic=self.topic,
                    partition=partition,
                    committed_only=True,
                    start=start,
                    records=tuple(records),
                    next_offset=moved[partition],
                )
            )
        return moved

    def committed(self, group: str, partitions: Sequence[int]) -> dict[int, int]:
        """What the group has committed; 0 where it has not."""
        asked_at, offsets = self._ask_committed(partitions)
        for partition, offset in offsets.items():
            self.note(
                OffsetFetched(
                    at=now(),
                    group=group,
                    topic=self.topic,
                    partition=partition,
                    offset=max(offset, -1),
                    asked_at=asked_at,
                )
            )
        return {partition: max(offset, 0) for partition, offset in offsets.items()}

    def _ask_committed(self, partitions: Sequence[int]) -> tuple[int, dict[int, int]]:
        """When the question left, and the offsets; again until a coordinator answers."""
        places = [TopicPartition(self.topic, partition) for partition in partitions]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            asked_at = now()
            try:
                answered = self.consumer.committed(places, timeout=_CALL_S)
                errors = [place.error for place in answered if place.error]
                if errors:
                    raise KafkaException(errors[0])
                return asked_at, {place.partition: place.offset for place in answered}
            except KafkaException as error:
                self.trouble("committed offsets", error)
                if time.monotonic() > deadline:
                    raise


class Member(Reader):
    """A member of a group of the new protocol (KIP-848), which commits after every batch."""

    def __init__(
        self, name: str, recorder: Recorder, bootstrap: str, topic: str, partitions: int, group: str
    ) -> None:
        super().__init__(f"{group}/{name}", recorder, bootstrap, topic, partitions, group)
        self._group = group

    @override
    def config(self, bootstrap: str, group: str) -> dict[str, Any]:
        return super().config(bootstrap, group) | {"group.protocol": "consumer"}

    @override
    def begin(self) -> None:
        self.consumer.subscribe(
            [self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    @override
    def turn(self) -> None:
        moved = self.take(self.poll())
        if not moved:
            return
        offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in moved.items()]
        asked_at = now()
        try:
            answered = self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self.trouble("commit", error)
            # The coordinator moves, or the group does. The next commit takes these along.
            return
        for place in answered:
            if place.error is None:
                self.note(
                    OffsetCommitted(
                        at=now(),
                        group=self._group,
                        member=self.name,
                        # A member's epoch cannot be compared with that of others.
                        generation=-1,
                        topic=self.topic,
                        partition=place.partition,
                        offset=place.offset,
                        asked_at=asked_at,
                    )
                )

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        self.session += 1
        positions = self.committed(self._group, [place.partition for place in places])
        self.positions |= positions
        consumer.incremental_assign(
            [TopicPartition(self.topic, partition, offset) for partition, offset in positions.items()]
        )

    def _revoked(self, consumer: Any, places: list[Any]) -> None:
        for place in places:
            self.positions.pop(place.partition, None)
        consumer.incremental_unassign(places)
