"""Topics into tables: where an archive begins and goes on, and what it refuses to leave out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.pipeline.lake import archive, topics
from millrace.pipeline.lake.archive import ArchiveOptions, Step, TopicArchive, read_ranges
from millrace.pipeline.lake.errors import RecordsLost, TopicRecreated
from millrace.pipeline.lake.ledger import Ledger
from millrace.pipeline.lake.table import TableState
from millrace.pipeline.lake.topics import BrokerOptions, TopicBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.client.broker_client import BrokerClient

BROKER = BrokerOptions(bootstrap="b:1", properties={"sasl.username": "u"})
NO_CLIENT = cast("BrokerClient", None)


class Spark:
    """Reads nothing, and keeps what it was asked to read."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.read = self

    def format(self, name: str) -> Spark:
        assert name == "millrace"
        return self

    def options(self, **options: str) -> Spark:
        self.asked.append(options)
        return self

    def load(self) -> Spark:
        return self

    def select(self, *_: str) -> Spark:
        return self

    def session(self) -> SparkSession:
        return cast("SparkSession", self)


class Table:
    """The ledgers of a table's commits."""

    ledgers: list[Ledger]
    path = "/lake/orders"

    def exists(self) -> bool:
        return bool(self.ledgers)

    def create(self, ledger: Ledger) -> None:
        self.ledgers.append(ledger)

    def state(self) -> TableState:
        return TableState(len(self.ledgers) - 1, self.ledgers[-1])

    def append(self, _rows: object, ledger: Ledger) -> None:
        self.ledgers.append(ledger)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    found = Table()
    found.ledgers = []
    monkeypatch.setattr(archive, "ArchiveTable", lambda *_: found)
    monkeypatch.setattr(archive, "with_date", lambda rows: rows)
    return found


def bounds(start: Mapping[int, int], end: Mapping[int, int], topic_id: str = "id") -> TopicBounds:
    return TopicBounds(topic_id=topic_id, start=start, end=end)


def opened(monkeypatch: pytest.MonkeyPatch, now: TopicBounds, **options: Any) -> tuple[TopicArchive, Spark]:
    spark = Spark()
    monkeypatch.setattr(topics, "topic_bounds", lambda *_: now)
    found = TopicArchive(spark.session(), "orders", ArchiveOptions(root="/lake", broker=BROKER, **options))
    found.open(NO_CLIENT)
    return found, spark


@pytest.mark.parametrize("start, first", [("earliest", {0: 2}), ("latest", {0: 9})])
def test_a_new_archive_begins_where_it_is_told(
    start: str, first: dict[int, int], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = opened(monkeypatch, bounds({0: 2}, {0: 9}), start=start)
    assert (found.ledger.first, found.ledger.next) == (first, first)
    assert table.ledgers[0].topic_id == "id"


def test_an_archive_goes_on_where_its_ledger_ends(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    now = bounds({0: 0, 1: 0}, {0: 9, 1: 3})
    table.ledgers = [Ledger(topic="orders", topic_id="id", sequence=4, first={0: 0}, next={0: 7})]
    found, spark = opened(monkeypatch, now)
    step = found.step(now)
    assert step == Step(ranges={0: (7, 9), 1: (0, 3)}, lost={}, remaining=0)
    assert step is not None
    assert step.offsets == 5
    assert json.loads(spark.asked[0]["startingOffsets"]) == {"orders": {"0": 7, "1": 0}}
    assert (table.ledgers[-1].next, table.ledgers[-1].sequence) == ({0: 9, 1: 3}, 5)
    assert found.step(now) is None


def test_a_step_takes_no_more_than_it_may_and_says_what_is_left(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = bounds({0: 0, 1: 0}, {0: 60, 1: 40})
    found, _ = opened(monkeypatch, now, batch_records=10)
    taken = []
    while (step := found.step(now)) is not None:
        assert step.offsets <= 11
        taken.append(step)
    assert sum(step.offsets for step in taken) == 100
    assert taken[0].remaining == 100 - taken[0].offsets
    assert taken[-1].remaining == 0


def test_records_that_are_gone_stop_an_archive_unless_gaps_are_allowed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.ledgers = [Ledger(topic="orders", topic_id="id", first={0: 0}, next={0: 3})]
    now = bounds({0: 5}, {0: 9})
    found, _ = opened(monkeypatch, now)
    with pytest.raises(RecordsLost, match="offsets 3 to 4 of orders-0 left the topic"):
        found.step(now)
    assert len(table.ledgers) == 1
    found, _ = opened(monkeypatch, now, allow_gaps=True)
    assert found.step(now) == Step(ranges={0: (5, 9)}, lost={0: (3, 5)}, remaining=0)


def test_a_topic_that_was_made_anew_is_no_longer_the_archived_one(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.ledgers = [Ledger(topic="orders", topic_id="old", first={0: 0}, next={0: 3})]
    with pytest.raises(TopicRecreated, match="archive it to another place"):
        opened(monkeypatch, bounds({0: 0}, {0: 9}))
    # A ledger that was found by its rows does not know the id: it learns it.
    table.ledgers = [Ledger(topic="orders", topic_id="", first={0: 0}, next={0: 3})]
    found, _ = opened(monkeypatch, bounds({0: 0}, {0: 9}))
    assert found.ledger.topic_id == "id"


def test_ranges_are_read_exactly_or_not_at_all() -> None:
    spark = Spark()
    read_ranges(spark.session(), BROKER, "orders", {1: (4, 9), 0: (2, 3)})
    (options,) = spark.asked
    assert options["sasl.username"] == "u"
    assert json.loads(options["assign"]) == {"orders": [0, 1]}
    assert json.loads(options["startingOffsets"]) == {"orders": {"0": 2, "1": 4}}
    assert json.loads(options["endingOffsets"]) == {"orders": {"0": 3, "1": 9}}
    assert (options["failOnDataLoss"], options["includeHeaders"]) == ("true", "true")
