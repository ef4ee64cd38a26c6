"""Options of all commands that start Spark: where it runs, its settings, and the object store it reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from millrace.cli.options import key_values

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SPARK_OPTIONS: Final = (
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        envvar="SPARK_MASTER",
        metavar="URL",
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://...",
    ),
    click.option(
        "--spark-conf",
        "--conf",
        "spark_conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark, such as the credentials of an object store. Repeatable.",
    ),
    click.option(
        "--s3-endpoint",
        envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        metavar="URL",
        help="The S3 behind s3a: URLs, if it is not Amazon's: http://127.0.0.1:9000.",
    ),
)


def spark_options(command: _Command) -> _Command:
    """Add the options that `spark_settings` reads, and `--master`."""
    for option in reversed(_SPARK_OPTIONS):
        command = option(command)
    return command


def spark_settings(options: dict[str, Any], declared: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of Spark: the command line wins over a file, and a file over what an endpoint means."""
    from millrace.pipeline.spark.stores import s3_settings

    given = key_values(options["spark_conf"], option="--spark-conf")
    return s3_settings(options["s3_endpoint"]) | dict(declared or {}) | given
