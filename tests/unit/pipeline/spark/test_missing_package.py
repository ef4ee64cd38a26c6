"""What users of Spark read when the Python of its workers lacks this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import py4j
import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructType

from millrace.pipeline.sink.data_sink import make_stream_writer, make_writer
from millrace.pipeline.source.data_source import MillraceDataSource
from millrace.pipeline.source.options import read_options
from millrace.pipeline.source.reader import MillraceReader
from millrace.pipeline.source.stream import MillraceStreamReader
from millrace.pipeline.spark.missing_package import find_missing_package, missing_package
from millrace.pipeline.spark.spark_errors import explain

PICKLER: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}
ROWS = StructType().add("value", BinaryType())

# What a worker does first with what the driver sent, in a Python that has PySpark and nothing else.
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from pyspark.serializers import CPickleSerializer
CPickleSerializer().loads(sys.stdin.buffer.read())
"""


def _what_spark_sends(kind: str) -> object:
    if kind == "source":
        return MillraceDataSource
    if kind == "batch":
        return MillraceReader(read_options({**SERVERS, "subscribe": "t"}, streaming=False), ("value",))
    if kind == "stream":
        return MillraceStreamReader(read_options({**SERVERS, "subscribe": "t"}, streaming=True), ("value",))
    make = make_writer if kind == "writer" else make_stream_writer
    return make(ROWS, {**SERVERS, "topic": "t"}, False)


@pytest.mark.parametrize("kind", ["source", "batch", "stream", "writer", "stream writer"])
def test_what_spark_sends_says_what_a_worker_without_the_package_needs(kind: str, tmp_path: Path) -> None:
    for package in (pyspark, py4j):
        (directory,) = map(Path, package.__path__)
        (tmp_path / directory.name).symlink_to(directory)
    worker = subprocess.run(
        [sys.executable, "-I", "-S", "-c", WORKER, str(tmp_path)],
        input=PICKLER.dumps(_what_spark_sends(kind)),
        capture_output=True,
        check=False,
    )
    assert worker.returncode == 1
    said = worker.stderr.decode()
    assert missing_package("millrace", sys.executable) in said
    # The same sentence is what is left for whoever shows one line.
    assert explain(RuntimeError(said)) == missing_package("millrace", sys.executable)


@pytest.mark.parametrize("kind", ["source", "batch", "stream", "writer", "stream writer"])
def test_what_spark_sends_is_the_same_where_the_package_is(kind: str) -> None:
    sent = _what_spark_sends(kind)
    found = PICKLER.loads(PICKLER.dumps(sent))
    assert found is sent if kind == "source" else type(found) is type(sent)


def test_a_bare_error_of_spark_becomes_the_sentence_too() -> None:
    text = (
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'millrace'\n\n\tat org.apache.spark"
    )
    assert explain(RuntimeError(text)) == missing_package("millrace")


def test_modules_of_the_users_own_are_not_taken_for_ours() -> None:
    assert find_missing_package("ModuleNotFoundError: No module named 'millrace_tools'") is None
    assert find_missing_package("ModuleNotFoundError: No module named 'pandas'") is None
