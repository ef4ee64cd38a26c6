"""The sink with a commit that dies half-way, once: what Spark's workers load for the tests of faults."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.core.override import override
from millrace.pipeline.sink.data_sink import StreamWriter, TaskMessage
from millrace.pipeline.sink.options import SinkOptions, read_sink_options
from millrace.pipeline.source.data_source import MillraceDataSource

NAME = "millrace_dying"


class DyingWriter(StreamWriter):
    """Its first commit ends one transaction, leaves a file and kills its process; it commits well then."""

    def __init__(self, options: SinkOptions, died: Path) -> None:
        super().__init__(options)
        self._died = died

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if not self._died.exists():
            super().commit(_all_but_first_done(messages), batchId)
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(messages, batchId)


def _all_but_first_done(messages: list[WriterCommitMessage | None]) -> list[WriterCommitMessage | None]:
    """As if only the first task had a transaction to commit."""
    first, *others = (each for each in messages if isinstance(each, TaskMessage))
    return [first, *(replace(each, outcome=replace(each.outcome, identity=None)) for each in others)]


class DyingSource(MillraceDataSource):
    """`millrace` with that writer; the option `died` names the file."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        del schema, overwrite
        options = dict(self.options)
        died = Path(options.pop("died"))
        return DyingWriter(read_sink_options(options, is_streaming=True), died)
