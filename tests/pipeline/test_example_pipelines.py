"""The pipelines in examples/ do what they say: each is run on orders whose results are known."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic
from tests.pipeline.declared_support import received, run_once, send
from tools.kafka_distribution import PROJECT_ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = PROJECT_ROOT / "examples" / "pipelines"
COUNTRIES = {1: "GB", 2: "US", 3: "FI", 4: "US", 5: "NL"}
"""Of data/customers.csv; orders of customer 6 are nobody's."""


def order(number: int, minute: int) -> dict[str, Any]:
    return {
        "order_id": number,
        "customer_id": 1 + number % 6,
        "amount": 25.0 * (number % 8) + 0.5,
        "cents": 100 + number,
        "paid": number % 4 != 0,
        "at": f"2026-01-31T12:{minute:02d}:{number % 60:02d}Z",
    }


ORDERS = [order(number, number % 5) for number in range(120)]
# Long after the others: their windows are closed by it.
LAST = order(121, 50)
Windows = dict[tuple[str, str], list[float]]


@dataclass(frozen=True)
class Shop:
    """A broker with the topics and orders that the examples name, and a copy of their folder."""

    bootstrap: str
    folder: Path

    def revenue(self, at_least: int) -> list[dict[str, Any]]:
        return [
            json.loads(message.value())
            for message in received(self.bootstrap, "revenue", at_least)
            if message.key() is not None
        ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("shop")
    process = MillraceProcess(directory / "broker")
    process.start()
    try:
        for topic, partitions in (("orders", 2), ("revenue", 1), ("orders-unreadable", 1)):
            create_topic(process.bootstrap, topic, partitions)
        send(process.bootstrap, "orders", [*ORDERS, *ORDERS[:10], b'{"order_id": ', LAST])
        folder = directory / "pipelines"
        shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(".millrace", "lake", "checkpoints"))
        yield Shop(process.bootstrap, folder)
    finally:
        process.end()


@pytest.fixture(autouse=True)
def _environment(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP", shop.bootstrap)


def windows_of(orders: list[dict[str, Any]], measure: str) -> Windows:
    """Number and sum of each minute and country."""
    found: Windows = defaultdict(lambda: [0, 0])
    for each in orders:
        if each["customer_id"] in COUNTRIES:
            window = found[each["at"][:16], COUNTRIES[each["customer_id"]]]
            window[0] += 1
            window[1] += each[measure]
    return found


def windows_in(rows: list[dict[str, Any]], measure: str) -> Windows:
    found = {(row["minute"][:16], row["country"]): [row["orders"], row[measure]] for row in rows}
    assert len(found) == len(rows), "a window came twice"
    return found


@pytest.mark.parametrize("name, table", [("orders.yaml", "orders"), ("orders.sql", "orders-by-sql")])
def test_orders_are_joined_deduplicated_and_summed(
    spark: SparkSession, shop: Shop, name: str, table: str
) -> None:
    before = len(shop.revenue(0))
    run_once(spark, shop.folder / name)

    paid = [each for each in ORDERS if each["paid"]]
    wanted = windows_of(paid, "amount")
    assert windows_in(shop.revenue(before + len(wanted))[before:], "amount") == wanted
    rows = spark.read.format("delta").load(str(shop.folder / "lake" / table)).collect()
    known = [each["order_id"] for each in (*paid, LAST) if each["customer_id"] in COUNTRIES]
    assert sorted(row["order_id"] for row in rows) == known
    assert {row["customer"] for row in rows if row["country"] == "GB"} == {"Ada Lovelace"}
    letters = received(shop.bootstrap, "orders-unreadable", 1)
    assert {letter.value() for letter in letters} == {b'{"order_id": '}


def test_totals_are_kept_in_a_database(
    spark: SparkSession, shop: Shop, extra_jars: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sqlite" not in extra_jars:
        pytest.skip("the JDBC driver of sqlite is not in the cache and cannot be fetched")
    path = shop.folder / "shop.db"
    monkeypatch.setenv("JDBC_URL", f"jdbc:sqlite:{path}")
    run_once(spark, shop.folder / "big_orders_to_database.yaml")
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT customer_id, orders, amount FROM customer_totals").fetchall()
    connection.close()
    wanted: dict[int, list[float]] = defaultdict(lambda: [0, 0.0])
    for each in (*ORDERS, *ORDERS[:10], LAST):
        if each["amount"] >= 100:
            wanted[each["customer_id"]][0] += 1
            wanted[each["customer_id"]][1] += each["amount"]
    assert {customer: [orders, amount] for customer, orders, amount in found} == wanted


def test_the_pipeline_of_the_demo(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_DIR", str(tmp_path))
    shutil.copy(shop.folder / "data" / "customers.csv", tmp_path)
    before = len(shop.revenue(0))
    run_once(spark, shop.folder / "demo_orders.yaml")
    wanted = windows_of(ORDERS, "cents")
    assert windows_in(shop.revenue(before + len(wanted))[before:], "cents") == wanted
    rows = spark.read.format("delta").load(str(tmp_path / "lake" / "known_orders"))
    assert rows.count() == sum(each["customer_id"] in COUNTRIES for each in (*ORDERS, LAST))


def test_no_example_is_left_out() -> None:
    """Whoever adds one adds its test here."""
    found = {path.name for pattern in ("*.yaml", "*.sql") for path in EXAMPLES.glob(pattern)}
    assert found == {"orders.yaml", "orders.sql", "big_orders_to_database.yaml", "demo_orders.yaml"}
