"""The data source by name: schemas that can be chosen, and options checked when a read is planned."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millrace.client.errors import InvalidOption
from millrace.pipeline.sink.data_sink import BatchWriter
from millrace.pipeline.source.columns import COLUMNS, ddl
from millrace.pipeline.source.data_source import MillraceDataSource
from millrace.pipeline.source.reader import MillraceReader
from millrace.pipeline.source.stream import MillraceStreamReader

OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def chosen(*names: str) -> StructType:
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {
                    "name": name,
                    "type": {"offset": "long"}.get(name, "binary"),
                    "nullable": True,
                    "metadata": {},
                }
                for name in names
            ],
        }
    )


def test_it_has_the_name_that_users_write() -> None:
    assert MillraceDataSource.name() == "millrace"


def test_headers_are_columns_only_if_they_are_asked_for() -> None:
    plain = MillraceDataSource(dict(OPTIONS)).schema()
    with_headers = MillraceDataSource(OPTIONS | {"includeHeaders": "true"}).schema()
    assert "headers" not in plain
    assert with_headers == ddl(COLUMNS)


def test_readers_are_made_for_the_columns_that_were_chosen() -> None:
    source = MillraceDataSource(dict(OPTIONS))
    assert isinstance(source.reader(chosen("value", "offset")), MillraceReader)
    assert isinstance(source.streamReader(chosen("value")), MillraceStreamReader)


@pytest.mark.parametrize("schema", [
    StructType([StructField("nothing", StringType())]),
    StructType([StructField("value", LongType())]),
])  # fmt: skip
def test_a_schema_of_other_columns_is_refused(schema: StructType) -> None:
    with pytest.raises(InvalidOption, match="is not one of this source: choose from `key`"):
        MillraceDataSource(dict(OPTIONS)).reader(schema)


def test_options_are_checked_when_a_read_is_planned_and_not_before() -> None:
    source = MillraceDataSource({"subscribe": "orders"})
    with pytest.raises(InvalidOption, match=r"bootstrap\.servers"):
        source.reader(chosen("value"))


def test_a_writer_is_made_from_the_same_source() -> None:
    source = MillraceDataSource({"bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
    assert isinstance(source.writer(chosen("value"), False), BatchWriter)
