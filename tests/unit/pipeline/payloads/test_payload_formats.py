"""Avro and Protobuf values without Spark, and words for JSON that does not fit."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pytest
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.arrow import built
from millrace.pipeline.payloads.avro_payload import read_avro_schema
from millrace.pipeline.payloads.json_payload import explain
from millrace.pipeline.payloads.protobuf_payload import read_protobuf_schema
from millrace.pipeline.payloads.schemas import Undecodable

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "mark", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": ["null", "Line"], "default": None},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
    ],
}
ROW = {
    "id": 5,
    "note": None,
    "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    "clock": 61_001,
    "mark": "12345678-1234-5678-1234-567812345678",
    "price": Decimal("12.50"),
    "tags": {"a": 1},
    "lines": [{"sku": "s", "count": 1}],
    "first": {"sku": "q", "count": 2},
    "color": "RED",
    "raw": b"abcd",
}


def test_avro_values_become_what_columns_hold() -> None:
    payload = read_avro_schema(json.dumps(ORDER))
    assert payload.spark_type.simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,clock:int,mark:string,price:decimal(10,2),"
        "tags:map<string,bigint>,lines:array<struct<sku:string,count:int>>,first:struct<sku:string,count:int>,"
        "color:string,raw:binary>"
    )
    found = payload.decoder()(payload.encoder()(ROW))
    assert found == {**ROW, "tags": [("a", 1)]}
    kind = StructType([StructField("value", payload.spark_type), StructField("error", StringType())])
    assert built([found, None], [None, "bad"], kind).to_pylist()[0]["value"]["price"] == Decimal("12.50")


def test_damaged_avro_is_undecodable() -> None:
    payload = read_avro_schema(json.dumps(ORDER))
    whole = payload.encoder()(ROW)
    decode = payload.decoder()
    for damaged in (b"", whole[:-3], whole + b"x"):
        with pytest.raises(Undecodable, match="not Avro of this schema"):
            decode(damaged)


@pytest.mark.parametrize(
    "schema, words",
    [
        ("{", "the Avro schema is not JSON"),
        ('{"type": "recrd"}', "the Avro schema is not valid: unknown type"),
        ('"string"', "must be a record"),
        ('{"type":"record","name":"A","fields":[{"name":"a","type":["null","A"]}]}', "is recursive at A"),
        (
            '{"type":"record","name":"A","fields":[{"name":"a","type":["int","string"]}]}',
            "union in field 'a'",
        ),
        ('{"type":"record","name":"A","fields":[{"name":"a","type":"B"}]}', "unknown type B"),
        ("  ", "the schema is empty"),
        ("file:nowhere.avsc", "schema file nowhere.avsc: No such file"),
    ],
)
def test_mistakes_in_avro_schemas(schema: str, words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        read_avro_schema(schema)
    assert words in str(refused.value)


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Line { string sku = 1; int32 count = 2; }
enum Color { UNKNOWN = 0; RED = 1; }
message Order {
  int64 id = 1; optional string note = 2; google.protobuf.Timestamp at = 3; repeated Line lines = 4;
  map<string, int64> tags = 5; Color color = 6; uint64 big = 7; bytes raw = 8; Line first = 9;
  map<int32, Line> by_number = 10; repeated Color colors = 11; double share = 12;
}
"""


def test_protobuf_values_become_what_columns_hold() -> None:
    payload = read_protobuf_schema(PROTO, "Order")
    row = {
        "id": 5,
        "note": None,
        "at": dt.datetime(2020, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC),
        "lines": [{"sku": "s", "count": 1}],
        "tags": {"a": 1},
        "color": "RED",
        "big": Decimal(2**64 - 1),
        "raw": b"\0\1",
        "first": None,
        "by_number": {3: {"sku": "z", "count": 9}},
        "colors": ["RED", "UNKNOWN"],
        "share": 1.5,
    }
    found = payload.decoder()(payload.encoder()(row))
    assert found == {**row, "tags": [("a", 1)], "by_number": [(3, {"sku": "z", "count": 9})]}
    with pytest.raises(Undecodable, match="'GREEN' is not one of Color's values"):
        payload.encoder()({"color": "GREEN"})
    with pytest.raises(Undecodable, match=r"not a shop\.Order in Protobuf"):
        payload.decoder()(b"\xff\xff")
    with pytest.raises(InvalidOption, match="column 'price' is not in shop"):
        payload.check_encodable(StructType([StructField("price", LongType())]))
    # A descriptor set is as good as its source.
    assert read_protobuf_schema(payload.descriptors, "shop.Order").spark_type == payload.spark_type
    for message, words in ((None, "name one of shop.Line, shop.Order"), ("Ordr", "'Ordr' is not in")):
        with pytest.raises(InvalidOption, match=words):
            read_protobuf_schema(payload.descriptors, message)


@pytest.mark.parametrize(
    "schema, words",
    [
        ('syntax = "proto3"; message A {', r"does not compile: inline\.proto:1:"),
        ('syntax = "proto3"; message A { A a = 1; }', "is recursive at A"),
        (b"\1\2", "not a descriptor set"),
    ],
)
def test_mistakes_in_protobuf_schemas(schema: str | bytes, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        read_protobuf_schema(schema, None)


@pytest.mark.parametrize(
    "value, words",
    [
        (b"\xff", "not JSON: byte 0 is not UTF-8"),
        (b"{", "not JSON: Expecting property name"),
        (b"3", "not a JSON object but a number"),
        (b'{"on": true}', "field 'id' is missing or null"),
        (b'{"id": "1"}', "field 'id' is a string, not bigint"),
        (b'{"id": 1, "on": 1}', "field 'on' is a number, not boolean"),
        (b'{"id": 1, "tags": {}}', "field 'tags' is an object, not array<string>"),
        (b'{"id": 1}', "does not fit the schema"),
    ],
)
def test_words_for_json_that_does_not_fit(value: bytes, words: str) -> None:
    schema = StructType(
        [
            StructField("id", LongType(), nullable=False),
            StructField("on", BooleanType()),
            StructField("tags", ArrayType(StringType())),
        ]
    )
    assert words in explain(value, schema)
