"""The one place that makes Spark sessions: interpreter, jars for Delta, quiet logs, local addresses.

A session is for one driver process. Whoever makes one stops it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.pipeline.errors import SparkUnavailable
from millrace.pipeline.jars import JarCache, delta_jars, user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"

_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Lists in which a caller's words are added to ours, by what stands between words.
_LISTS: Final = {
    "spark.jars": ",",
    "spark.jars.packages": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
}
_INSTALL: Final = "pip install 'millrace[spark]'"


def make_session(
    *,
    app_name: str,
    master: str = DEFAULT_MASTER,
    delta: bool = True,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session as pipelines need it; `config` adds to our settings or replaces them."""
    require_spark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # PySpark logs every exception that it raises, with the whole Java trace; whoever catches it decides.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    is_local = master.startswith("local")
    if is_local:
        # Workers must see the packages of this interpreter, not of whatever `python3` is.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        _prefer_installed_pyspark()
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cache = delta_jars()
    settings = _base_settings(is_local)
    if delta:
        settings |= _DELTA_SETTINGS | _jar_settings(cache)
    settings = _merged(settings, config or {})
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkUnavailable(_start_failure(error, cache if delta else None)) from error
    if delta and cache.jars() is None:
        _keep_resolved(spark, cache)
    return spark


def require_spark() -> None:
    """Raise with what is missing, if Spark cannot run here at all."""
    try:
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError:
        raise SparkUnavailable(f"pipelines run on Spark, which is not installed: {_INSTALL}") from None
    if _java() is None:
        raise SparkUnavailable(
            "Spark needs Java 17 or newer: no `java` on the path, and JAVA_HOME is not set"
        )


def require_delta() -> None:
    """Raise if the jars for Delta tables are neither here nor to be had by Maven."""
    require_spark()
    if delta_jars().fetch(_shipped_jars()) is None:
        raise SparkUnavailable(
            "the jars of Delta Lake are not in the cache, and there is no `mvn` to fetch them"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _prefer_installed_pyspark() -> None:
    """Let workers import the installed PySpark, whose modules are compiled, not Spark's archive of it."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    site = str(Path(__file__).parent / "worker_site")
    if "SPARK_HOME" not in os.environ and site not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, paths)])


def _base_settings(is_local: bool) -> dict[str, str]:
    scratch = Path(tempfile.gettempdir()) / f"millrace-spark-{os.getuid()}"
    log4j = resources.files("millrace.pipeline").joinpath("log4j2.properties")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        # Dates of archives and bounds of windows must not depend on where the driver runs.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # Two attempts of one task at a time would be two producers with one transactional id.
        "spark.speculation": "false",
        "spark.sql.streaming.stopTimeout": "60s",
        # A Python worker on a busy machine may need longer than 15 s to say who it is.
        "spark.python.authenticate.socketTimeout": "180s",
    }
    if is_local:
        cores = str(max(2, os.cpu_count() or 2))
        settings |= {
            # A machine's own name may resolve to nothing, or to an address that nobody can reach.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": cores,
            # Delta would read the log of every table, however small, in 50 tasks.
            "spark.databricks.delta.snapshotPartitions": cores,
        }
    return settings


def _jar_settings(cache: JarCache) -> dict[str, str]:
    try:
        jars = cache.fetch(_shipped_jars())
    except SparkUnavailable:
        # Maven may be there and lead nowhere, while Spark's own settings know a way.
        jars = None
    if jars is not None:
        return {"spark.jars": ",".join(str(jar) for jar in jars)}
    return {"spark.jars.packages": cache.coordinates(), "spark.jars.ivy": str(user_cache() / "ivy")}


def _shipped_jars() -> list[str]:
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return [jar.name for jar in Path(home, "jars").glob("*.jar")]


def _merged(settings: dict[str, str], config: Mapping[str, str]) -> dict[str, str]:
    merged = dict(settings)
    for key, value in config.items():
        if key in _LISTS and merged.get(key):
            value = f"{merged[key]}{_LISTS[key]}{value}"
        merged[key] = value
    return merged


def _keep_resolved(spark: SparkSession, cache: JarCache) -> None:
    """Keep what Spark resolved by itself, so that the next start needs no network."""
    ivy = user_cache() / "ivy" / "jars"
    listed = spark.sparkContext.getConf().get("spark.jars", "") or ""
    found = [Path(jar.removeprefix("file:").replace("///", "/")) for jar in listed.split(",")]
    resolved = [jar for jar in found if jar.parent == ivy and jar.exists()]
    if any("delta-spark" in jar.name for jar in resolved):
        cache.keep(resolved)


def _start_failure(error: Exception, cache: JarCache | None) -> str:
    reason = f"Spark did not start (it needs Java 17 or newer): {error}"
    if cache is not None and cache.jars() is None:
        reason += (
            f". The jars of Delta Lake ({cache.coordinates()}) are not in {cache.directory}: they come from"
            " Maven Central, by `mvn` if it is installed, else by Spark itself"
        )
    return reason
