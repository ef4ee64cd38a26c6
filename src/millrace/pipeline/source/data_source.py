"""The data source `millrace`: hands what Spark asks for by `format("millrace")` to readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millrace.client.errors import InvalidOption
from millrace.core.override import override
from millrace.pipeline.source.columns import COLUMNS, ddl
from millrace.pipeline.source.options import chosen_columns, read_options
from millrace.pipeline.spark.missing_package import Announced

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class MillraceDataSource(DataSource, metaclass=Announced):
    """What Spark knows as `millrace`. It checks options when a read or write is planned, not before."""

    options: MutableMapping[str, str]

    @classmethod
    @override
    def name(cls) -> str:
        return "millrace"

    @override
    def schema(self) -> str:
        return ddl(chosen_columns(self.options))

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        from millrace.pipeline.source.reader import MillraceReader

        return MillraceReader(read_options(self.options, streaming=False), _columns(schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from millrace.pipeline.source.stream import MillraceStreamReader

        return MillraceStreamReader(read_options(self.options, streaming=True), _columns(schema))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millrace.pipeline.sink.data_sink import make_writer

        return make_writer(schema, self.options, overwrite)

    @override
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from millrace.pipeline.sink.data_sink import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite)


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, which may be the user's own choice among those that there are."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from millrace.pipeline.records.row_schema import arrow_schema

    columns = tuple(schema.fieldNames())
    known = all(name in COLUMNS for name in columns)
    if not known or not to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns)):
        raise InvalidOption(
            f"the schema {schema.simpleString()} is not one of this source: choose from {ddl(COLUMNS)}"
        )
    return columns
