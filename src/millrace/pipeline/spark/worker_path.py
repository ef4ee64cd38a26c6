"""Where Spark's Python workers find PySpark: installed and compiled, rather than in Spark's own archive.

What a worker imports from an archive is compiled again at every start, and every streaming query starts a
process of its own: about a second. `worker_site` puts the installed package first. This is for a local Spark
only, whose workers have the same packages as the driver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql import SparkSession

_SITE: Final = str(Path(__file__).parent / "worker_site")


def prefer_installed_pyspark(spark: SparkSession) -> None:
    """Let workers find the installed PySpark, for all that is registered with this session from now on."""
    # A session of Spark Connect has no context: its workers belong to the server.
    if hasattr(spark, "sparkContext") and (spark.sparkContext.master or "").startswith("local"):
        add_worker_site(spark.sparkContext.environment)


def add_worker_site(environment: MutableMapping[str, str]) -> None:
    """Put our site first on the path of workers, unless another Spark than the installed one is asked for."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if "SPARK_HOME" not in os.environ and _SITE not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([_SITE, *filter(None, paths)])
