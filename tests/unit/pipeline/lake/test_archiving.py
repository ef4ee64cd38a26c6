"""Runs of archives: once, or round after round with what may pass tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.pipeline.lake import archiving
from millrace.pipeline.lake.archive import ArchiveOptions, Step
from millrace.pipeline.lake.archiving import FAILURES_MAX, ArchiveRun
from millrace.pipeline.lake.errors import RecordsLost
from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.maintenance import Done, Upkeep
from millrace.pipeline.lake.topics import BrokerOptions, TopicBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = Ledger(topic="orders", topic_id="id", next={0: 4})


class Broker:
    @contextmanager
    def client(self) -> Iterator[None]:
        yield None


@dataclass
class World:
    """Archives that have some steps to do in each round, failures to come, and what was reported."""

    steps: int = 2
    failures: list[Exception] = field(default_factory=list)
    rounds: int = 3
    opened: list[str] = field(default_factory=list)
    reports: list[tuple[str, Any]] = field(default_factory=list)
    days: list[bool] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    joined: int = 0

    # The reporter.

    def planned(self, _topic: str, offsets: int) -> None:
        self.reports.append(("planned", offsets))

    def stepped(self, _topic: str, step: Step) -> None:
        self.reports.append(("stepped", step.offsets))

    def maintained(self, _topic: str, done: Done) -> None:
        self.reports.append(("maintained", done.files_joined))

    def failed(self, _topic: str, reason: str) -> None:
        self.reports.append(("failed", reason))

    # The pause between rounds.

    def is_set(self) -> bool:
        return self.rounds <= 0

    def wait(self, timeout: float) -> bool:
        assert timeout == 60
        self.rounds -= 1
        return self.is_set()

    def maintain(self, *_: object, drop_days: bool = True, force: bool = False, **__: object) -> Done:
        self.days.append(drop_days)
        self.forced.append(force)
        return Done(ledger=LEDGER, files_joined=self.joined)


class Archive:
    world: World

    def __init__(self, _spark: object, topic: str, _options: object) -> None:
        self.topic = topic
        self.table = None
        self.ledger = LEDGER
        self._left = self.world.steps

    def open(self, _client: object) -> None:
        self.world.opened.append(self.topic)

    def ends(self, _client: object) -> TopicBounds:
        if self.world.failures:
            raise self.world.failures.pop(0)
        self._left = self.world.steps
        return TopicBounds(topic_id="id", start={0: 0}, end={0: 10, 1: 3})

    def step(self, _bounds: TopicBounds) -> Step | None:
        if self._left == 0:
            return None
        self._left -= 1
        return Step(ranges={0: (0, 5)}, lost={}, remaining=0)

    def maintained(self, ledger: Ledger) -> None:
        self.ledger = ledger


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(archiving, "TopicArchive", type("Bound", (Archive,), {"world": found}))
    monkeypatch.setattr(archiving, "maintain", found.maintain)
    return found


def run(world: World, *topics: str) -> ArchiveRun:
    return ArchiveRun(
        spark=cast("SparkSession", None),
        topics=topics or ("orders",),
        options=ArchiveOptions(root="/lake", broker=cast("BrokerOptions", Broker())),
        upkeep=Upkeep(),
        reporter=world,
        stop=world,
        today=lambda: date(2026, 1, 31),
    )


def test_once_takes_all_there_is_of_each_topic_and_reports_it(world: World) -> None:
    run(world, "orders", "people").once()
    assert world.opened == ["orders", "people"]
    # Ten and three offsets, of which four are archived.
    assert world.reports == [("planned", 9), ("stepped", 5), ("stepped", 5)] * 2


def test_upkeep_is_only_told_where_it_did_something(world: World) -> None:
    world.joined = 3
    run(world).once()
    assert world.reports[-1] == ("maintained", 3)


def test_rounds_go_on_until_stopped_and_days_are_dropped_once_a_day(world: World) -> None:
    run(world).forever(60)
    assert [name for name, _ in world.reports].count("planned") == 3
    assert world.days == [True, False, False]
    assert world.opened == ["orders"]


def test_a_wish_to_stop_ends_the_round_between_two_steps(world: World) -> None:
    world.rounds = 0
    run(world).once()
    assert [name for name, _ in world.reports] == ["planned"]


@pytest.mark.parametrize("error", [ConnectionFailed("gone"), BrokerRefused(6, "orders-0")])
def test_what_may_pass_is_told_and_tried_again_from_what_the_table_says(
    error: Exception, world: World
) -> None:
    world.failures = [error]
    run(world).forever(60)
    assert world.reports[0] == ("failed", str(error))
    # Whether the last commit came through is not known, so the archive is opened anew.
    assert world.opened == ["orders", "orders"]
    assert [name for name, _ in world.reports].count("planned") == 2


@pytest.mark.parametrize("error", [RecordsLost("gone"), BrokerRefused(29, "orders"), ValueError("a bug")])
def test_what_does_not_pass_ends_the_run(error: Exception, world: World) -> None:
    world.failures = [error]
    with pytest.raises(type(error)):
        run(world).forever(60)
    assert world.reports == []


def test_too_many_failures_in_a_row_end_the_run(world: World) -> None:
    world.rounds = 100
    world.failures = [ConnectionFailed("gone")] * 100
    with pytest.raises(ConnectionFailed):
        run(world).forever(60)
    assert len(world.reports) == FAILURES_MAX - 1


def test_upkeep_alone_does_all_that_is_configured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        def __init__(self, *_: object) -> None:
            pass

        def state(self) -> Any:
            return Done(ledger=LEDGER)

    monkeypatch.setattr(archiving, "ArchiveTable", Table)
    run(world).maintain_only()
    assert (world.forced, world.opened) == ([True], [])
    assert world.reports == [("maintained", 0)]
