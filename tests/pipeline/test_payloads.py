"""Payloads as columns and back, and records that do not parse in a topic of their own."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads import decode, encode, write_stream_with_dead_letters
from tests.harness.millrace import MillraceProcess
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.sink_support import read_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            },
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                    },
                },
            },
        ],
    }
)
PROTO: Final = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; GIFT = 1; }
message Line { string sku = 1; int32 count = 2; }
message Order {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  Kind kind = 4;
  uint64 total = 5;
  map<string, int64> tags = 6;
  repeated Line lines = 7;
}
"""
AT: Final = dt.datetime(2026, 1, 31, 12, 30, 15, 123456)  # noqa: DTZ001 - Spark gives naive ones
DDL: Final = {
    "avro": "id long, note string, at timestamp, day date, price decimal(10,2), tags map<string,long>, "
    "lines array<struct<sku:string,count:int>>",
    "protobuf": "id long, note string, at timestamp, kind string, total decimal(20,0), "
    "tags map<string,long>, lines array<struct<sku:string,count:int>>",
    "json": "id long, note string, at timestamp, lines array<struct<sku:string,count:int>>",
}
ROWS: Final = {
    "avro": [
        (1, "first", AT, dt.date(2026, 1, 31), Decimal("12.50"), {"a": 1}, [("s1", 2), ("s2", 3)]),
        (2, None, AT, dt.date(1969, 12, 31), Decimal("-0.01"), {}, []),
    ],
    "protobuf": [
        (1, "first", AT, "GIFT", Decimal(2**64 - 1), {"a": 1}, [("s1", 2), ("s2", 3)]),
        (2, None, AT, "UNKNOWN", Decimal(0), {}, []),
    ],
    "json": [(1, "first", AT, [("s1", 2)]), (2, None, AT, [])],
}
SCHEMAS: Final = {"avro": AVRO, "protobuf": PROTO, "json": DDL["json"]}
MESSAGES: Final = {"protobuf": "Order"}


def orders(spark: SparkSession, name: str) -> DataFrame:
    return spark.createDataFrame(ROWS[name], DDL[name])


DAMAGED: Final = {
    "json": {
        b"\xff{}": "not JSON: byte 0 is not UTF-8",
        b'{"id": ': "not JSON: Expecting value",
        b"[1]": "not a JSON object but an array",
        b"": "not JSON: Expecting value",
        b'{"id": "x"}': "field 'id' is a string, not bigint",
    },
    "avro": {
        b"": "not Avro of this schema: it ends after 0 bytes",
        b"\x02\x00": "not Avro of this schema: it ends after 2 bytes",
    },
    "protobuf": {b"\x08": "not a shop.Order in Protobuf"},
}


@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
def test_what_is_encoded_is_decoded_and_the_rest_set_aside(spark: SparkSession, name: str) -> None:
    schema, message = SCHEMAS[name], MESSAGES.get(name)
    frame = orders(spark, name).selectExpr("*", "cast(id AS string) AS key")
    encoded = encode(frame, name, schema, message=message)
    assert encoded.columns == ["key", "value"]
    # A null payload is a deletion, not a mistake.
    others = [("null", None), *((None, bytearray(damaged)) for damaged in DAMAGED[name])]
    mixed = encoded.union(spark.createDataFrame(others, "key string, value binary")).coalesce(1)

    good, bad = decode(mixed, name, schema, message=message)

    found = good.select("key", "decoded").collect()
    assert [row.key for row in found] == ["1", "2", "null"]
    assert [row.decoded for row in found] == [*orders(spark, name).collect(), None]
    reasons = {bytes(row.value): row.error for row in bad.collect()}
    assert set(reasons) == set(DAMAGED[name])
    for damaged, reason in DAMAGED[name].items():
        assert reason in reasons[damaged]


def test_other_modes(spark: SparkSession) -> None:
    frame = spark.createDataFrame([('{"id": 1}',), ("{",)], "value string").coalesce(1)
    both = decode(frame, "json", "id long", mode="permissive").collect()
    assert both[0].decoded.id == 1
    assert both[0].error is None
    assert both[1].decoded is None
    assert both[1].error.startswith("not JSON")
    with pytest.raises(Exception, match="a payload in column 'value' does not parse: not JSON"):
        decode(frame, "json", "id long", mode="fail").collect()
    with pytest.raises(InvalidOption, match="mode='strict': must be dead_letter, permissive or fail"):
        decode(frame, "json", "id long", mode="strict")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="a column 'value' is to be added, but there is one"):
        decode(frame, "json", "id long", into="value")


def test_required_fields_of_json(spark: SparkSession) -> None:
    frame = spark.createDataFrame([('{"id": 1}',), ('{"other": 1}',)], "value string")
    good, bad = decode(frame, "json", "id long NOT NULL, note string")
    assert [row.decoded.id for row in good.collect()] == [1]
    assert [row.error for row in bad.collect()] == ["field 'id' is missing or null"]


def test_rows_that_cannot_be_encoded_are_set_aside(spark: SparkSession) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    frame = spark.createDataFrame([("a", 1), ("b", None)], "key string, n int")
    good, bad = encode(frame, "avro", schema, mode="dead_letter")
    assert [row.key for row in good.collect()] == ["a"]
    (row,) = bad.collect()
    assert row.key == "b"
    assert "does not fit the Avro schema" in row.error
    with pytest.raises(Exception, match="a row cannot be encoded"):
        encode(frame, "avro", schema).collect()


def test_schemas_come_from_files_too(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(AVRO)
    (tmp_path / "order.proto").write_text(PROTO)
    encoded = encode(orders(spark, "avro"), "avro", tmp_path / "order.avsc")
    good, bad = decode(encoded, "avro", f"file:{tmp_path}/order.avsc")
    assert good.select("decoded.*").columns == orders(spark, "avro").columns
    assert bad.columns == ["value", "error"]
    rows = encode(orders(spark, "protobuf"), "protobuf", tmp_path / "order.proto", message="Order")
    assert rows.columns == ["value"]


@pytest.mark.parametrize(
    "name, schema, words",
    [
        ("xml", "x", "payload format 'xml': must be json, avro or protobuf"),
        ("json", "id lng", "the schema for JSON is not a list of columns"),
        ("avro", "{", "the Avro schema is not JSON"),
        ("avro", '"string"', "the Avro schema must be a record"),
        ("protobuf", PROTO, "name one of shop.Line, shop.Order"),
        ("avro", Path("nowhere.avsc"), "schema file nowhere.avsc: No such file or directory"),
    ],
)
def test_mistakes_in_schemas_are_named(
    spark: SparkSession, name: str, schema: str | Path, words: str
) -> None:
    frame = spark.createDataFrame([(b"",)], "value binary")
    with pytest.raises(InvalidOption) as refused:
        decode(frame, name, schema)
    assert words in str(refused.value)


def test_a_stream_sends_dead_letters_and_goes_on(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    output, dead = make_topic(partitions=2, stem="output"), make_topic(stem="dead")
    source = tmp_path / "in"
    source.mkdir()
    lines = [json.dumps({"id": number}) for number in range(40)]
    lines[7], lines[23] = "no json", '{"id": "seven"}'
    (source / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    records = (
        spark.readStream.format("text")
        .load(str(source))
        .selectExpr("value", "'in' AS topic", "3 AS partition", "cast(42 AS long) AS offset")
    )
    good, bad = decode(records, "json", "id long")
    rows = encode(good.select("decoded.*"), "json", "id long")
    query = write_stream_with_dead_letters(
        rows,
        bad,
        topic=output,
        dead_letter_topic=dead,
        checkpoint=str(tmp_path / "checkpoint"),
        options={"kafka.bootstrap.servers": broker.bootstrap},
        trigger={"availableNow": True},
    )
    query.awaitTermination()

    found = [json.loads(each.value or b"")["id"] for each in read_committed(broker.bootstrap, output, 2)]
    assert sorted(found) == [number for number in range(40) if number not in (7, 23)]
    letters = {each.value: dict(each.headers) for each in read_committed(broker.bootstrap, dead)}
    assert set(letters) == {b"no json", b'{"id": "seven"}'}
    headers = letters[b"no json"]
    assert (headers["millrace.error.reason"] or b"").startswith(b"not JSON")
    assert headers["millrace.error.topic"] == b"in"
    assert headers["millrace.error.partition"] == b"3"
    assert headers["millrace.error.offset"] == b"42"
