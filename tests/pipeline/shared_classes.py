"""One archive of loaded classes for all JVMs of the tests with Spark: each of them starts in half the time.

The archive is made once for each Java and Spark, by a program of its own, and kept in `.cache/`. A JVM that
cannot use it, since a jar has changed, loads its classes as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
OPTIONS: Final = "SPARK_SUBMIT_OPTS"
TRAINING_S: Final = 300.0
# Neither about an archive that does not fit nor about one that is made is anything said.
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"


def share_classes(cache: Path = ROOT / ".cache" / "jvm") -> None:
    """Let all JVMs that Spark starts from now on use the archive; make it if there is none."""
    archive = cache / f"spark-{_fingerprint()}.jsa"
    options = os.environ.get(OPTIONS, "")
    if not archive.exists() and not _make(archive, options):
        return
    os.environ[OPTIONS] = f"{options} -XX:SharedArchiveFile={archive} {_SILENT}".strip()


def end(spark: SparkSession) -> None:
    """Stop a session, and wait for the end of its JVM."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
        # The JVM ends when the pipe to its standard input does, and writes an archive that is asked of it.
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
        SparkContext._gateway = SparkContext._jvm = None


def _make(archive: Path, options: str) -> bool:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "made.jsa"
        done = _train(Path(directory), f"{options} -XX:ArchiveClassesAtExit={made} {_SILENT}")
        if done.returncode != 0 or not made.exists():
            return False
        # Under its name it is whole, whoever else makes it at the same time.
        beside = archive.with_name(f"{archive.name}.{os.getpid()}")
        beside.write_bytes(made.read_bytes())
        beside.rename(archive)
    return True


def _train(directory: Path, options: str) -> subprocess.CompletedProcess[bytes]:
    environment: Mapping[str, str] = {**os.environ, OPTIONS: options.strip()}
    return subprocess.run(
        [sys.executable, "-m", "tests.pipeline.class_training", str(directory)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TRAINING_S,
        check=False,
    )


def _fingerprint() -> str:
    """What an archive fits: this Java and these jars."""
    import pyspark

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else Path("java")
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    place = Path(pyspark.__file__).parent.resolve()
    return hashlib.blake2b(version + f"{pyspark.__version__} {place}".encode(), digest_size=8).hexdigest()
