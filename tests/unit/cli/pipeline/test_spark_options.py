"""Every command that starts Spark takes the same words for it."""

from __future__ import annotations

import click
import pytest

from millrace.cli.pipeline import analytics as pipeline_analytics
from millrace.cli.pipeline import lake as pipeline_lake
from millrace.cli.pipeline import run as pipeline_run
from millrace.cli.pipeline.spark_options import spark_settings

WITH_SPARK = {
    **pipeline_lake.COMMANDS,
    **pipeline_analytics.COMMANDS,
    **{name: pipeline_run.COMMANDS[name] for name in ("run", "validate", "explain")},
}


@pytest.mark.parametrize("name", sorted(WITH_SPARK))
def test_spark_is_told_the_same_way_by_every_command(name: str) -> None:
    options = [each for each in WITH_SPARK[name].params if isinstance(each, click.Option)]
    words = {word for each in options for word in each.opts}
    assert {"--master", "--spark-conf", "--conf", "--s3-endpoint"} <= words


def test_the_command_line_goes_before_the_file_and_the_file_before_an_endpoint() -> None:
    endpoint, style = "spark.hadoop.fs.s3a.endpoint", "spark.hadoop.fs.s3a.path.style.access"
    given = {"s3_endpoint": "http://127.0.0.1:1", "spark_conf": ("a=line", "b=1=2")}
    found = spark_settings(given, {"a": "file", "c": "file", style: "false"})
    assert (found["a"], found["b"], found["c"]) == ("line", "1=2", "file")
    assert (found[endpoint], found[style]) == ("http://127.0.0.1:1", "false")
    nothing = spark_settings({"s3_endpoint": None, "spark_conf": ()})
    assert nothing == {}
