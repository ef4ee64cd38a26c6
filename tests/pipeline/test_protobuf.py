"""Protobuf between topics: written and read by classes that protoc generates, decoded by its descriptors."""

from __future__ import annotations

import datetime as dt
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from millrace.pipeline.lake.archive import ArchiveOptions, TopicArchive
from millrace.pipeline.lake.decoding import make_decoder
from tests.harness.millrace import MillraceProcess
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.declared_support import received, run_once, send, write_file
from tests.pipeline.lake_support import broker_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MONEY = """\
syntax = "proto3";
package shop;
message Money { int64 units = 1; sint32 nanos = 2; string currency = 3; }
"""
ORDER = """\
syntax = "proto3";
package shop;
import "money.proto";
import "google/protobuf/timestamp.proto";
enum State { NEW = 0; PAID = 1; }
message Order {
  message Line { string sku = 1; uint32 count = 2; Money price = 3; }
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  State state = 4;
  repeated Line lines = 5;
  map<string, int64> points = 6;
  oneof payment { string card = 7; bytes voucher = 8; }
  fixed64 serial = 9;
}
"""
RECEIPT = """\
syntax = "proto3";
package shop;
message Receipt { int64 order_id = 1; string state = 2; int64 units = 3; repeated string skus = 4; }
"""
PIPELINE = """\
pipeline: receipts
bootstrap.servers: @bootstrap@
sources:
  orders:
    topic: @orders@
    format: protobuf
    schema_file: @schema@
    message: Order
    dead_letters: @dead@
sinks:
  receipts:
    sql: |
      SELECT id AS order_id, state, aggregate(lines, 0L, (sum, l) -> sum + l.count * l.price.units) AS units,
             lines.sku AS skus
      FROM orders
    topic: @receipts@
    key: order_id
    format: protobuf
    schema_file: receipt.proto
"""
AT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModuleType, ModuleType]:
    """A folder with sources and a descriptor set, and the classes of both messages: all made by protoc."""
    folder = tmp_path_factory.mktemp("proto")
    for name, text in (("money", MONEY), ("order", ORDER), ("receipt", RECEIPT)):
        (folder / f"{name}.proto").write_text(text)
    well_known = Path(importlib.util.find_spec("grpc_tools").origin or "").parent / "_proto"  # type: ignore[union-attr]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}"]
    classes = [*protoc, f"--python_out={folder}", "money.proto", "order.proto", "receipt.proto"]
    described = [*protoc, "--include_imports", f"--descriptor_set_out={folder}/order.desc", "order.proto"]
    for command in (classes, described):
        subprocess.run(command, check=True, timeout=60)
    sys.path.insert(0, str(folder))
    try:
        return folder, importlib.import_module("order_pb2"), importlib.import_module("receipt_pb2")
    finally:
        sys.path.remove(str(folder))


def order(module: Any, number: int) -> Any:
    message = module.Order(
        id=number, state=module.PAID if number % 2 else module.NEW, serial=2**64 - 1 - number
    )
    message.at.FromDatetime(AT)
    for line in range(number % 3):
        added = message.lines.add(sku=f"s{line}", count=line + 1)
        added.price.units, added.price.currency = 10 * (line + 1), "EUR"
    message.points["gold"] = number
    if number % 2:
        message.card = f"card {number}"
    return message


@pytest.mark.parametrize("schema", ["order.desc", "order.proto"])
def test_a_pipeline_reads_one_message_and_writes_another(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    generated: tuple[Path, ModuleType, ModuleType],
    schema: str,
) -> None:
    """Both forms of a schema: the descriptors that protoc has made, and the source with what it imports."""
    folder, orders_module, receipts_module = generated
    for path in (*folder.glob("*.proto"), folder / "order.desc"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    orders, receipts, dead = (make_topic(1, stem=stem) for stem in ("orders", "receipts", "dead"))
    late = order(orders_module, 3)
    late.at.seconds = 2**60
    damaged = {
        "cut short": order(orders_module, 5).SerializeToString()[:-3],
        "no Protobuf": b"\xff\xff\xff",
        "text that is no UTF-8": b"\x12\x02\xc3\x28",
        "a time that no row can hold": late.SerializeToString(),
    }
    good = [order(orders_module, number) for number in range(20)]
    values = [message.SerializeToString() for message in good]
    send(broker.bootstrap, orders, [*values[:10], *damaged.values(), *values[10:]])
    names = {"bootstrap": broker.bootstrap, "orders": orders, "receipts": receipts, "dead": dead}
    run_once(spark, write_file(tmp_path, PIPELINE, schema=schema, **names))

    sent = received(broker.bootstrap, receipts, at_least=len(good))
    found = {message.key(): receipts_module.Receipt.FromString(message.value()) for message in sent}
    assert len(sent) == len(good)
    for message in good:
        receipt = found[str(message.id).encode()]
        assert receipt.order_id == message.id
        assert receipt.state == ("PAID" if message.id % 2 else "NEW")
        assert list(receipt.skus) == [line.sku for line in message.lines]
        assert receipt.units == sum(line.count * line.price.units for line in message.lines)
    letters = received(broker.bootstrap, dead, at_least=len(damaged))
    assert [letter.value() for letter in letters] == list(damaged.values())
    reasons = [dict(letter.headers())["millrace.error.reason"].decode() for letter in letters]
    assert [reason.partition(":")[0] for reason in reasons] == [
        *["not a shop.Order in Protobuf"] * 3,
        "a shop.Order that no row can hold",
    ]
    assert [dict(letter.headers())["millrace.error.offset"] for letter in letters] == [
        b"10",
        b"11",
        b"12",
        b"13",
    ]


def test_an_archive_decodes_messages_into_columns_and_keeps_what_does_not_parse(
    spark: SparkSession,
    broker: MillraceProcess,
    make_topic: MakeTopic,
    tmp_path: Path,
    generated: tuple[Path, ModuleType, ModuleType],
) -> None:
    folder, orders_module, _ = generated
    topic = make_topic(1, stem="orders")
    good = order(orders_module, 5)
    send(broker.bootstrap, topic, [good.SerializeToString(), b"\xff"])
    options = broker_options(broker.bootstrap)
    decode = make_decoder("protobuf", str(folder / "order.desc"), "shop.Order")
    archive = TopicArchive(spark, topic, ArchiveOptions(root=str(tmp_path), broker=options, decode=decode))
    with options.client() as client:
        archive.open(client)
        archive.step(archive.ends(client))
    first, second = archive.table.read().orderBy("offset").collect()
    row = first["decoded"].asDict(recursive=True)
    # Spark gives naive times of wherever this process is.
    assert row["at"].astimezone(dt.UTC) == AT
    assert (row["id"], row["state"], row["note"]) == (5, "PAID", None)
    assert (row["card"], row["voucher"], int(row["serial"])) == ("card 5", None, good.serial)
    assert row["points"] == {"gold": 5}
    assert [(line["sku"], line["count"], line["price"]["units"]) for line in row["lines"]] == [
        ("s0", 1, 10),
        ("s1", 2, 20),
    ]
    assert second["decoded"] is None
    assert bytes(second["value"]) == b"\xff"
    assert second["decodeError"].startswith("not a shop.Order in Protobuf")
