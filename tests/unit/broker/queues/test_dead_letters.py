"""Dead letters are written until they are committed, in order, and nobody waits for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from millrace.broker.internal_appends import InternalAppends
from millrace.broker.queues import dead_letters as module
from millrace.broker.queues.dead_letters import DeadLetters, DeadLetterSettings
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.partition.appending import Appended
from millrace.metadata.image import NO_LEADER
from millrace.metadata.service import NewTopic
from millrace.queues.dead_letters import Origin, origin_of
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.changes import DeadLetter, DeadLetterCause
from millrace.queues.share_partition.model import ShareKey
from millrace.replica.partition import NotLeader
from millrace.wire.records import Record, build_batch, read_records, split_batches
from tests.unit.broker.handlers.broker import NODE_ID, Broker, FixedClock

ENABLED = {"errors.deadletterqueue.group.enable": "true"}
REJECTED = DeadLetterCause.REJECTED


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    monkeypatch.setattr(module, "APPEND_DEADLINE_S", 0.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


class Share:
    """A share partition of `orders` that gives up records."""

    def __init__(self, broker: Broker, *, group: str = "g", **settings: Any) -> None:
        partition = broker.services.partitions.find("orders", 0)
        assert partition is not None
        self.key = ShareKey(group, bytes(16), 0)
        self.partition = partition
        self.rules: Any = SimpleNamespace(
            settings=ShareSettings(**({"dead_letter_topic": "dlq.orders"} | settings))
        )
        self.error: MillraceError | None = None
        self.written: list[tuple[int, int]] = []

    def dead_letter_written(self, first: int, last: int) -> None:
        self.written.append((first, last))


class Desk:
    """The writer, and what it wrote."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        self.broker = broker
        self.tasks: list[asyncio.Task[None]] = []
        self.appends: Any = InternalAppends(
            broker.metadata, broker.services.partitions, clock=FixedClock(), node_id=NODE_ID
        )
        fields: dict[str, Any] = {
            "topic_prefix": "dlq.",
            "creates_topics": False,
            "new_topic_configs": ENABLED,
        }
        self.dead_letters = DeadLetters(
            self,  # type: ignore[arg-type]
            broker.metadata,
            broker.services.partitions,
            clock=FixedClock(),
            start_task=self._start,
            settings=lambda: DeadLetterSettings(**(fields | settings)),
            is_enabled=_is_enabled,
            next_producer_id=self._next_producer_id,
        )
        self.producers = 0
        self.refusals: list[MillraceError] = []
        self.lies: list[MillraceError] = []

    async def append(self, topic: str, partition: int, batch: bytes, *, deadline_s: float) -> Any:
        if self.refusals:
            return self.refusals.pop(0)
        appended = await self.appends.append(topic, partition, batch, deadline_s=deadline_s)
        return self.lies.pop(0) if self.lies else appended

    async def _next_producer_id(self) -> int:
        self.producers += 1
        return 4_000 + self.producers

    def write(self, share: Share, *letters: DeadLetter, meanwhile: Callable[[], None] | None = None) -> None:
        """Write dead letters until that is done."""

        async def main() -> None:
            self.dead_letters.write(share, letters)
            if meanwhile is not None:
                await asyncio.sleep(0.03)
                assert not share.written
                meanwhile()
            await asyncio.gather(*self.tasks)

        self.broker.run(main())
        self.tasks.clear()
        assert self.dead_letters.writers_count == 0

    def _start(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def letters(self, topic: str = "dlq.orders", partition: int = 0) -> list[Record]:
        found = self.broker.services.partitions.find(topic, partition)
        assert found is not None
        data = found.log.read(0, 1 << 30, found.log.log_end_offset, True).read()
        return [record for batch in split_batches(memoryview(data)) for record in read_records(batch)]

    def origins(self) -> list[tuple[int, int]]:
        origins = [origin_of(record) for record in self.letters()]
        return [(origin.offset, origin.delivery_count) for origin in origins if isinstance(origin, Origin)]


def _is_enabled(configs: Mapping[str, str]) -> bool:
    return configs.get("errors.deadletterqueue.group.enable") == "true"


def _fill(broker: Broker, count: int = 10, *, value: bytes = b"v") -> None:
    broker.create_topic("orders")
    appends = InternalAppends(
        broker.metadata, broker.services.partitions, clock=FixedClock(), node_id=NODE_ID
    )
    records = [Record(number, 1000, b"k%d" % number, value, (("h", b"x"),)) for number in range(count)]
    assert isinstance(broker.run(appends.append("orders", 0, build_batch(records))), Appended)


def test_dead_letters_are_written_and_their_records_let_go(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    desk.write(share, DeadLetter(2, 3, 1, REJECTED), DeadLetter(7, 7, 5, DeadLetterCause.DELIVERY_LIMIT))
    assert share.written == [(2, 3), (7, 7)]
    assert desk.origins() == [(2, 1), (3, 1), (7, 5)]
    first = desk.letters()[0]
    assert (first.key, first.value, first.headers[0]) == (b"k2", b"v", ("h", b"x"))
    assert desk.dead_letters.written_count == 3


def test_the_source_decides_on_the_partition(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", partition_count=2, configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    share.key = share.key._replace(partition=5)
    desk.write(share, DeadLetter(2, 2, 1, REJECTED))
    assert len(desk.letters(partition=1)) == 1


def test_a_topic_that_is_missing_is_waited_for(broker: Broker) -> None:
    _fill(broker)
    desk, share = Desk(broker), Share(broker)
    creations: list[Any] = []

    def make() -> None:
        creations.append(asyncio.ensure_future(_create(broker)))

    desk.write(share, DeadLetter(2, 3, 1, REJECTED), meanwhile=make)
    assert share.written == [(2, 3)]
    assert desk.dead_letters.failed_count > 0


async def _create(broker: Broker) -> None:
    await broker.metadata.create_topics([NewTopic(name="dlq.orders", configs=ENABLED)])


def test_a_topic_that_is_missing_may_be_created(broker: Broker) -> None:
    _fill(broker)
    desk, share = Desk(broker, creates_topics=True), Share(broker)
    desk.write(share, DeadLetter(2, 3, 1, REJECTED))
    assert desk.origins() == [(2, 1), (3, 1)]


@pytest.mark.parametrize("name, configs", [("dlq.orders", {}), ("other", ENABLED)])
def test_topics_get_dead_letters_only_if_they_are_meant_for_them(
    broker: Broker, name: str, configs: dict[str, str]
) -> None:
    _fill(broker)
    broker.create_topic(name, configs=configs)
    desk, share = Desk(broker), Share(broker, dead_letter_topic=name)

    def give_in() -> None:
        assert not desk.letters(name)
        share.rules.settings = ShareSettings()

    desk.write(share, DeadLetter(2, 3, 1, REJECTED), meanwhile=give_in)
    assert share.written == [(2, 3)]
    assert not desk.letters(name)


def test_who_is_not_served_any_more_is_left_to_the_next_leader(broker: Broker) -> None:
    _fill(broker)
    desk, share = Desk(broker), Share(broker)

    def end() -> None:
        share.error = MillraceError("another leader")

    desk.write(share, DeadLetter(2, 3, 1, REJECTED), meanwhile=end)
    assert share.written == []


def test_what_was_written_before_is_not_written_again(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    desk = Desk(broker)
    desk.write(Share(broker), DeadLetter(2, 3, 1, REJECTED))

    async def again() -> None:
        share = Share(broker)
        desk.dead_letters.write(share, [DeadLetter(2, 5, 1, REJECTED)], is_again=True)
        await asyncio.gather(*desk.tasks)
        assert share.written == [(2, 5)]

    broker.run(again())
    assert [offset for offset, _ in desk.origins()] == [2, 3, 4, 5]


def test_an_append_that_ended_without_an_answer_is_looked_for(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    desk.lies.append(MillraceError("no answer"))
    desk.write(share, DeadLetter(2, 3, 1, REJECTED))
    assert [offset for offset, _ in desk.origins()] == [2, 3]
    assert share.written == [(2, 3)]


def test_refused_appends_are_tried_again(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    desk.refusals += [MillraceError("not now")] * 3
    desk.write(share, DeadLetter(2, 3, 1, REJECTED))
    assert desk.dead_letters.failed_count == 3
    assert share.written == [(2, 3)]


def test_what_does_not_fit_comes_in_parts_and_at_last_without_content(broker: Broker) -> None:
    _fill(broker, 4, value=b"v" * 1_000)
    broker.create_topic("dlq.orders", configs=ENABLED | {"max.message.bytes": "900"})
    desk, share = Desk(broker), Share(broker)
    desk.write(share, DeadLetter(0, 3, 1, REJECTED))
    assert [record.value for record in desk.letters()] == [None] * 4
    assert share.written == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_large_numbers_are_written_in_batches(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 4)
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    desk.write(share, DeadLetter(0, 9, 1, REJECTED))
    assert share.written == [(0, 3), (4, 7), (8, 9)]
    assert len(desk.letters()) == 10


def test_an_append_that_may_have_been_stored_is_repeated_as_it_was(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    # What a broker sees that does not lead the partition of the dead letters.
    monkeypatch.setattr(module, "TAIL_RECORDS", 0)
    desk, share = Desk(broker), Share(broker)
    away = NotLeader(TopicPartition("dlq.orders", 0), leader_id=NO_LEADER)
    desk.lies += [away, away]
    desk.write(share, DeadLetter(2, 3, 1, REJECTED), DeadLetter(5, 5, 1, REJECTED))
    desk.write(share, DeadLetter(7, 7, 1, REJECTED))
    assert [offset for offset, _ in desk.origins()] == [2, 3, 5, 7]
    assert share.written == [(2, 3), (5, 5), (7, 7)]
    assert desk.dead_letters.written_count == 4
    assert desk.producers == 1, "one for all batches of a partition"


def test_who_gives_up_an_append_begins_anew(broker: Broker) -> None:
    _fill(broker)
    broker.create_topic("dlq.orders", configs=ENABLED)
    broker.create_topic("dlq.others", configs=ENABLED)
    desk, share = Desk(broker), Share(broker)
    away = NotLeader(TopicPartition("dlq.orders", 0), leader_id=NO_LEADER)

    def go_elsewhere() -> None:
        desk.refusals.clear()
        share.rules.settings = ShareSettings(dead_letter_topic="dlq.others")

    desk.refusals = _Endless(away)
    desk.write(share, DeadLetter(2, 3, 1, REJECTED), meanwhile=go_elsewhere)
    assert not desk.letters("dlq.orders")
    assert len(desk.letters("dlq.others")) == 2
    assert share.written == [(2, 3)]


def test_a_topic_that_appears_is_noticed_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 3_600.0)
    _fill(broker)
    desk, share = Desk(broker), Share(broker)
    end = broker.metadata.subscribe(desk.dead_letters.metadata_changed)
    creations: list[Any] = []

    def make() -> None:
        creations.append(asyncio.ensure_future(_create(broker)))

    desk.write(share, DeadLetter(2, 3, 1, REJECTED), meanwhile=make)
    end()
    assert share.written == [(2, 3)]
    assert desk.dead_letters.failed_count == 1


class _Endless(list[MillraceError]):
    """The same refusal, until it is cleared."""

    def __init__(self, refusal: MillraceError) -> None:
        super().__init__([refusal])

    @override
    def pop(self, _index: Any = -1) -> MillraceError:
        return self[0]
