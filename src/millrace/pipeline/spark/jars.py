"""The jars that Spark needs for Delta tables, object stores and databases, kept in the user's cache.

Maven fetches them where it is installed, since it knows the machine's mirrors; else Spark resolves them
itself, and we keep what it found. Nothing here starts Spark.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.pipeline.errors import SparkUnavailable

Artifact = tuple[str, str, str]

DELTA_VERSION: Final = "4.4.0"
DELTA: Final[tuple[Artifact, ...]] = (
    ("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION),
    ("io.delta", "delta-storage", DELTA_VERSION),
)
# What a release of hadoop-aws was built with. Its own dependency is the bundle of every service that Amazon
# has, 690 MB; these few are what the file system itself calls, 11 MB.
AWS_SDK_OF_HADOOP: Final = {"3.5.0": "2.35.4"}
AWS_SDK_PARTS: Final = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
FETCH_TIMEOUT_S: Final = 600

_COMPLETE_MARK: Final = ".complete"
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millrace</groupId>
  <artifactId>spark-jars</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
_POM_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions>{}</exclusions>
    </dependency>
"""
_POM_EXCLUSION: Final = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
_VERSION_PART: Final = re.compile(r"-\d[^/]*\.jar$")


def user_cache() -> Path:
    """Where this user keeps what can be fetched again."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "millrace"


@dataclass(frozen=True, slots=True)
class JarCache:
    """The jars of some artifacts and of what they depend on, in one directory."""

    directory: Path
    artifacts: tuple[Artifact, ...]
    excluded: tuple[tuple[str, str], ...] = ()
    """Group and name of what they depend on and can do without."""

    @property
    def libs(self) -> Path:
        return self.directory / "libs"

    def jars(self) -> list[Path] | None:
        """What is kept, or None as long as it is not complete."""
        if not (self.directory / _COMPLETE_MARK).exists():
            return None
        return sorted(self.libs.glob("*.jar"))

    def coordinates(self) -> str:
        """The artifacts as Spark's own resolution wants them named."""
        return ",".join(":".join(artifact) for artifact in self.artifacts)

    def exclusions(self) -> str:
        """What Spark's own resolution is to leave out."""
        return ",".join(":".join(each) for each in self.excluded)

    def fetch(self, shipped: Iterable[str] = ()) -> list[Path] | None:
        """Fetch by Maven, without what Spark ships itself (jar names); None if there is no Maven."""
        kept = self.jars()
        if kept is not None:
            return kept
        maven = shutil.which("mvn")
        if maven is None:
            return None
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            # Two pipelines may both be the first.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.jars() is None:
                shutil.rmtree(self.libs, ignore_errors=True)
                _copy_dependencies(maven, self.directory / "pom.xml", self)
                _drop(self.libs, shipped)
                (self.directory / _COMPLETE_MARK).touch()
        return self.jars()

    def keep(self, found: Sequence[Path]) -> None:
        """Take over what Spark's own resolution found, for a later start without a network."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.jars() is None:
                self.libs.mkdir(exist_ok=True)
                for jar in found:
                    shutil.copy(jar, self.libs / jar.name)
                (self.directory / _COMPLETE_MARK).touch()


def delta_jars() -> JarCache:
    return JarCache(user_cache() / f"delta-{DELTA_VERSION}", DELTA)


def s3_jars(hadoop_version: str) -> JarCache:
    """Hadoop's file system for S3, of the Hadoop that Spark has inside."""
    artifacts: list[Artifact] = [("org.apache.hadoop", "hadoop-aws", hadoop_version)]
    excluded: tuple[tuple[str, str], ...] = ()
    sdk = AWS_SDK_OF_HADOOP.get(hadoop_version)
    if sdk is not None:
        artifacts += [("software.amazon.awssdk", part, sdk) for part in AWS_SDK_PARTS]
        excluded = (("software.amazon.awssdk", "bundle"),)
    return JarCache(user_cache() / f"hadoop-aws-{hadoop_version}", tuple(artifacts), excluded)


def package_jars(coordinates: str) -> JarCache:
    """One package as Maven names it, GROUP:ARTIFACT:VERSION."""
    group, name, version = coordinates.split(":")
    return JarCache(user_cache() / "packages" / f"{group}-{name}-{version}", ((group, name, version),))


def artifact_of(jar_name: str) -> str:
    """The artifact in a jar's file name: all before the version."""
    return _VERSION_PART.sub("", jar_name)


def _drop(libs: Path, shipped: Iterable[str]) -> None:
    """Remove what Spark has already: a second version beside its own can only do harm."""
    names = {artifact_of(name) for name in shipped}
    for jar in sorted(libs.glob("*.jar")):
        if artifact_of(jar.name) in names:
            jar.unlink()


def _copy_dependencies(maven: str, pom: Path, cache: JarCache) -> None:
    artifacts = cache.artifacts
    exclusions = "".join(_POM_EXCLUSION.format(*each) for each in cache.excluded)
    dependencies = "".join(_POM_DEPENDENCY.format(*artifact, exclusions) for artifact in artifacts)
    pom.write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={cache.libs}", "-DincludeScope=runtime"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SparkUnavailable(f"Maven did not fetch {_names(artifacts)} in {FETCH_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        complaint = (answer.stdout + answer.stderr).strip()[-1000:]
        raise SparkUnavailable(f"Maven cannot fetch {_names(artifacts)}:\n{complaint}")


def _names(artifacts: Sequence[Artifact]) -> str:
    return ", ".join(f"{name} {version}" for _, name, version in artifacts)
