"""The text of a codec while it is being written, and the facts about fields that the compilers need."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import pytest

from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.schema_fields import NO_UUID, Field
from millrace.wire.schema_source import (
    SHORT_ARRAY,
    Source,
    default_expression,
    element_kind,
    is_array,
    minimal_size,
    tagged_fields,
    wire_fields,
)


@dataclass
class Inner:
    number: int = 0

    FIELDS: ClassVar[tuple[Field, ...]] = (Field("number", "int32", "0+"),)


@dataclass
class Outer:
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("late", "int64", "2+"),
        Field("second", "string", "1+", tag=1),
        Field("name", "string", "0+"),
        Field("first", "int32", "1+", tag=0),
        Field("gone", "bool", "0-1"),
        Field("inner", "struct", "0+", struct=Inner),
        Field("maybe", "struct", "3+", struct=Inner, nullable="3+"),
        Field("many", "[]int32", "0+"),
    )


def test_fields_are_in_the_order_of_the_schema_without_the_tagged_ones() -> None:
    assert [field.name for field in wire_fields(Outer, 0)] == ["name", "gone", "inner", "many"]
    assert [field.name for field in wire_fields(Outer, 2)] == ["late", "name", "inner", "many"]


def test_tagged_fields_are_in_the_order_of_their_tags() -> None:
    assert tagged_fields(Outer, 0) == []
    assert [field.name for field in tagged_fields(Outer, 1)] == ["first", "second"]


def test_an_array_is_told_from_its_elements() -> None:
    assert is_array(Field("f", "[]int32", "0+"))
    assert not is_array(Field("f", "int32", "0+"))
    assert element_kind(Field("f", "[]int32", "0+")) == element_kind(Field("f", "int32", "0+")) == "int32"


@pytest.mark.parametrize(
    "version, flexible, size",
    [
        # name 2, gone 1, inner 4, many 4.
        (0, False, 11),
        # late 8, name 2, inner 4, many 4.
        (2, False, 18),
        # late 8, name 1, inner 4 and its tags 1, maybe 1, many 1, own tags 1.
        (3, True, 17),
    ],
)
def test_the_least_size_counts_every_field_once(version: int, flexible: bool, size: int) -> None:
    assert minimal_size(Outer, version, flexible=flexible) == size


@pytest.mark.parametrize(
    "api_key", [ApiKey.METADATA, ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP, ApiKey.LIST_OFFSETS]
)
def test_no_message_of_defaults_is_smaller_than_the_least_size(api_key: ApiKey) -> None:
    cls = schema.message_class(api_key, "Request")
    first, last = schema.versions(api_key)
    for version in range(first, last + 1):
        encoded = schema.request_encoder(api_key, version)(cls())
        assert len(encoded) >= minimal_size(cls, version, flexible=schema.is_flexible(api_key, version))


@pytest.mark.parametrize(
    "field, value",
    [
        (Field("f", "int32", "0+"), 0),
        (Field("f", "int32", "0+", default=-1), -1),
        (Field("f", "string", "0+"), ""),
        (Field("f", "string", "0+", default=None), None),
        (Field("f", "bytes", "0+"), b""),
        (Field("f", "bool", "0+"), False),
        (Field("f", "float64", "0+"), 0.0),
        (Field("f", "uuid", "0+"), NO_UUID),
        (Field("f", "[]string", "0+"), []),
        (Field("f", "struct", "0+", struct=Inner), Inner()),
    ],
)
def test_a_field_that_was_not_sent_has_its_default(field: Field, value: object) -> None:
    source = Source()
    with source.block("def get():"):
        source.line(f"return {default_expression(source, field)}")
    get = source.compile("get", "defaults")
    assert get() == value
    assert type(get()) is type(value)
    if isinstance(value, list | Inner):
        assert get() is not get(), "two messages would share what can be changed"


def test_blocks_are_indented_and_compiled_with_their_constants() -> None:
    source = Source()
    limit = source.constant("LIMIT", [3])
    with source.block("def count(values):"):
        total = source.fresh("total")
        source.line(f"{total} = 0")
        with source.block("for value in values:"):
            source.line(f"{total} += value if value < {limit}[0] else 0")
        source.line(f"return {total}")
    assert source.text().splitlines()[2:4] == [
        "    for value in values:",
        f"        {total} += value if value < {limit}[0] else 0",
    ]
    assert source.compile("count", "a test")([1, 2, 3]) == 3


def test_names_are_fresh_and_constants_are_shared() -> None:
    source = Source()
    assert source.fresh("n") != source.fresh("n")
    value = object()
    assert source.constant("A", value) == source.constant("B", value)
    assert source.constant("A", object()) != source.constant("A", object())


def test_packers_pack_and_unpack_big_endian() -> None:
    source = Source()
    pack, unpack = source.names[source.packer("i?h")], source.names[source.unpacker("i?h")]
    assert callable(pack)
    assert callable(unpack)
    assert pack(1, True, 2) == struct.pack(">i?h", 1, True, 2)
    assert unpack(b"--" + pack(1, True, 2), 2) == (1, True, 2)
    assert source.packer("i?h") == source.packer("i?h")
    assert source.packer("i?h").isidentifier()


def test_short_arrays_have_a_packer_for_each_length() -> None:
    source = Source()
    packs, unpacks = source.names[source.array_packers("i")], source.names[source.array_unpackers("i")]
    assert isinstance(packs, tuple)
    assert isinstance(unpacks, tuple)
    assert len(packs) == len(unpacks) == SHORT_ARRAY
    assert unpacks[3](packs[3](1, -2, 3), 0) == (1, -2, 3)
    assert packs[0]() == b""
