"""Spark 4.0.0 with its own Kafka connector (JVM), in a virtual environment of its own, for comparison.

Millrace's pipelines run on another Spark, the connector on this one only: each is measured on its own.
All of it lies in `.cache`, made once: about 500 MB and a few minutes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.pipeline.errors import SparkUnavailable
from millrace.pipeline.spark.jars import Artifact, JarCache
from tools.kafka_distribution import PROJECT_ROOT

SPARK_VERSION: Final = "4.0.0"
CONNECTOR: Final[Artifact] = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION)
DEFAULT_CACHE: Final = PROJECT_ROOT / ".cache" / f"spark-{SPARK_VERSION}"
INSTALL_TIMEOUT_S: Final = 1800

_COMPLETE_MARK: Final = ".complete"


@dataclass(frozen=True, slots=True)
class SparkEnvironment:
    """A Python with PySpark 4.0.0, and the connector's jars."""

    python: Path
    jars: tuple[Path, ...]

    @property
    def jar_list(self) -> str:
        """The jars as `spark.jars` wants them."""
        return ",".join(str(jar) for jar in self.jars)

    def command(self, script: Path, *arguments: str) -> list[str]:
        """Run a script of ours in this environment; it finds the jars in SPARK_JARS."""
        return [str(self.python), str(script), *arguments]

    def environment(self) -> Mapping[str, str]:
        """The variables of a process in this environment: nothing of ours may leak into the other Spark."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))
        }
        python = str(self.python)
        return kept | {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_JARS": self.jar_list,
        }


def locate(cache: Path = DEFAULT_CACHE) -> SparkEnvironment:
    """The environment in `cache`, made if it is missing; SparkUnavailable says what that would need."""
    if shutil.which("java") is None:
        raise SparkUnavailable("no `java` command on the path")
    if shutil.which("mvn") is None:
        raise SparkUnavailable("no `mvn` command on the path to fetch Spark's Kafka connector with")
    venv = cache / "venv"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / _COMPLETE_MARK).exists():
            _make_venv(venv)
            (venv / _COMPLETE_MARK).touch()
    shipped = [jar.name for jar in _spark_home(venv).joinpath("jars").glob("*.jar")]
    jars = JarCache(cache / "connector", (CONNECTOR,)).fetch(shipped)
    assert jars, "Maven was there a moment ago"
    return SparkEnvironment(venv / "bin" / "python", tuple(jars))


def _make_venv(venv: Path) -> None:
    _must_run([str(PROJECT_ROOT / "tools" / "make_venv"), sys.executable, str(venv)])
    _must_run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK_VERSION}"])


def _spark_home(venv: Path) -> Path:
    return next((venv / "lib").glob("python*/site-packages/pyspark"))


def _must_run(command: list[str]) -> None:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SparkUnavailable(f"{command[0]} took longer than {INSTALL_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        complaint = (answer.stdout + answer.stderr).strip()[-1000:]
        raise SparkUnavailable(f"{' '.join(command)} failed:\n{complaint}")


if __name__ == "__main__":
    found = locate()
    print(f"{found.python} with {len(found.jars)} jars")
