"""The one place that makes Spark sessions: interpreter, jars, quiet logs, local addresses.

A session is for one driver process. Whoever makes one stops it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from millrace.pipeline.errors import SparkUnavailable
from millrace.pipeline.spark import stores
from millrace.pipeline.spark.jars import JarCache, delta_jars, package_jars, s3_jars, user_cache
from millrace.pipeline.spark.worker_path import add_worker_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"

_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Settings that are lists, with their separators: we add a caller's words to ours.
_LISTS: Final = {
    "spark.jars": ",",
    "spark.jars.packages": ",",
    "spark.jars.excludes": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
}
_HADOOP: Final = re.compile(r"hadoop-client-api-(?P<version>\d[\w.-]*)\.jar")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_INSTALL: Final = "pip install 'millrace[spark]'"

HIDDEN_OPTIONS: Final = r"(?i)secret|password|token|access[.]?key|jaas|key[.]pem|keystore[.]key"
"""The names of options whose values Spark shows to nobody."""


def make_session(
    *,
    app_name: str,
    master: str = DEFAULT_MASTER,
    delta: bool = True,
    config: Mapping[str, str] | None = None,
    locations: Iterable[str] = (),
    packages: Iterable[str] = (),
) -> SparkSession:
    """A Spark session as pipelines need it; `config` adds to our settings or replaces them.

    `locations` are all folders and URLs that will be read or written: their object stores need jars.
    `packages` are further jars, GROUP:ARTIFACT:VERSION.
    """
    require_spark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # PySpark logs every exception that it raises, with the whole Java trace; whoever catches it decides.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    _choose_interpreter(master)
    given = dict(config or {})
    needed = _needed_jars(given, delta=delta, locations=list(locations), packages=packages)
    settings = _base_settings(master)
    if delta:
        settings |= _DELTA_SETTINGS
    settings |= stores.spark_defaults()
    settings = _merged(_merged(settings, _jar_settings(needed)), given)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkUnavailable(_start_failure(error, needed)) from error
    _keep_resolved(spark, needed)
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
    if delta_jars().fetch(shipped_jars()) is None:
        raise SparkUnavailable(
            "the jars of Delta Lake are not in the cache, and there is no `mvn` to fetch them"
        )


def hadoop_version() -> str:
    """The version of the Hadoop inside Spark, which its file systems must have too."""
    for name in shipped_jars():
        match = _HADOOP.fullmatch(name)
        if match is not None:
            return match["version"]
    raise SparkUnavailable("this Spark has no Hadoop inside (hadoop-client-api): object stores need one")


def _needed_jars(
    given: Mapping[str, str], *, delta: bool, locations: Sequence[str], packages: Iterable[str]
) -> list[JarCache]:
    needed = [delta_jars()] if delta else []
    named = list(dict.fromkeys(packages))
    brought = ",".join([given.get("spark.jars", ""), given.get("spark.jars.packages", ""), *named])
    shipped = shipped_jars()
    if any(stores.scheme_of(each) for each in locations):
        stores.require_connectors(locations, brought, shipped, hadoop_version())
        if stores.needs_s3_jars(locations, brought, shipped):
            needed.append(s3_jars(hadoop_version()))
    return needed + [package_jars(each) for each in named]


def _choose_interpreter(master: str) -> None:
    if _is_local(master):
        # Workers must see the packages of this interpreter, not of whatever `python3` is.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        add_worker_site(os.environ)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _is_on_this_machine(master: str) -> bool:
    """Whether only this machine reaches the master, so that its workers are here too."""
    return master.startswith("spark://") and urlsplit(master.partition(",")[0]).hostname in _LOOPBACK


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _base_settings(master: str) -> dict[str, str]:
    scratch = Path(tempfile.gettempdir()) / f"millrace-spark-{os.getuid()}"
    log4j = resources.files("millrace.pipeline.spark").joinpath("log4j2.properties")
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
        # Spark's own, and what else may be secret in our options: plans, logs and its pages show options.
        "spark.redaction.regex": HIDDEN_OPTIONS,
    }
    if _is_local(master) or _is_on_this_machine(master):
        # A machine's own name may resolve to nothing, or to an address that nobody can reach.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if _is_local(master):
        cores = str(max(2, os.cpu_count() or 2))
        settings |= {
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": cores,
            # Delta would read the log of every table, however small, in 50 tasks.
            "spark.databricks.delta.snapshotPartitions": cores,
        }
    return settings


def _jar_settings(needed: Sequence[JarCache]) -> dict[str, str]:
    """Jars that are here or that Maven fetches, and the names of those that Spark is to resolve itself."""
    here: list[Path] = []
    unresolved: list[JarCache] = []
    shipped = shipped_jars()
    for cache in needed:
        try:
            jars = cache.fetch(shipped)
        except SparkUnavailable:
            # Maven may be there and lead nowhere, while Spark's own settings know a way.
            jars = None
        if jars is None:
            unresolved.append(cache)
        else:
            here += jars
    settings = {"spark.jars": ",".join(str(jar) for jar in here)} if here else {}
    if unresolved:
        settings |= {
            "spark.jars.packages": ",".join(cache.coordinates() for cache in unresolved),
            "spark.jars.ivy": str(user_cache() / "ivy"),
        }
        exclusions = [cache.exclusions() for cache in unresolved if cache.excluded]
        if exclusions:
            settings["spark.jars.excludes"] = ",".join(exclusions)
    return settings


def shipped_jars() -> list[str]:
    """The names of the jars that Spark has itself."""
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


def _keep_resolved(spark: SparkSession, needed: Sequence[JarCache]) -> None:
    """Keep what Spark resolved by itself, so that the next start needs no network.

    Only where it resolved one set: otherwise we cannot tell whose the jars are. Ivy's own cache has the rest.
    """
    missing = [cache for cache in needed if cache.jars() is None]
    configured = spark.sparkContext.getConf()
    if len(missing) != 1 or configured.get("spark.jars.packages") != missing[0].coordinates():
        return
    ivy = user_cache() / "ivy" / "jars"
    listed = configured.get("spark.jars", "") or ""
    found = [Path(jar.removeprefix("file:").replace("///", "/")) for jar in listed.split(",")]
    resolved = [jar for jar in found if jar.parent == ivy and jar.exists()]
    if any(missing[0].artifacts[0][1] in jar.name for jar in resolved):
        missing[0].keep(resolved)


def _start_failure(error: Exception, needed: Sequence[JarCache]) -> str:
    reason = f"Spark did not start (it needs Java 17 or newer): {error}"
    for cache in needed:
        if cache.jars() is None:
            reason += (
                f". The jars of {cache.coordinates()} are not in {cache.directory}: they come from"
                " Maven Central, by `mvn` if it is installed, else by Spark itself"
            )
    return reason
