"""What surrounds a Spark session, without starting one: its settings, its jars, its errors in one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from millrace.client.security import SECURITY_OPTIONS
from millrace.pipeline.errors import PipelineError, SparkUnavailable
from millrace.pipeline.spark import jars, session
from millrace.pipeline.spark.spark_errors import explain

FAKE_MAVEN = """#!/bin/sh
for word in "$@"; do
  case "$word" in -DoutputDirectory=*) out="${word#-DoutputDirectory=}" ;; esac
done
mkdir -p "$out" && touch "$out/delta-spark_4.2_2.13-4.4.0.jar" "$out/scala-library-2.13.17.jar"
echo called >> "$out/../calls"
exit ${MAVEN_STATUS:-0}
"""


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mvn").write_text(FAKE_MAVEN)
    (programs / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "cache"


def test_jars_are_fetched_once_and_without_what_spark_ships(fake_maven: Path) -> None:
    cache = jars.JarCache(fake_maven, jars.DELTA)
    assert cache.jars() is None
    for _ in range(2):
        found = cache.fetch(["scala-library-2.13.18.jar"])
        assert [jar.name for jar in found or ()] == ["delta-spark_4.2_2.13-4.4.0.jar"]
    assert (fake_maven / "calls").read_text().count("called") == 1


def test_a_failed_fetch_leaves_nothing_that_looks_complete(
    fake_maven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAVEN_STATUS", "1")
    cache = jars.JarCache(fake_maven, jars.DELTA)
    with pytest.raises(SparkUnavailable, match=r"delta-spark_4\.2_2\.13 4\.4\.0"):
        cache.fetch()
    assert cache.jars() is None


def test_without_maven_spark_resolves_by_itself_and_the_result_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cache = jars.JarCache(tmp_path / "cache", jars.DELTA)
    assert cache.fetch() is None
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in cache.coordinates()
    resolved = tmp_path / "io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    resolved.touch()
    cache.keep([resolved])
    assert [jar.name for jar in cache.jars() or ()] == [resolved.name]


def test_without_java_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="needs Java 17"):
        session.require_spark()


def test_spark_hides_every_option_that_holds_a_secret() -> None:
    """It shows the options of sources and sinks in plans and logs."""
    hidden = re.compile(session._base_settings("local[2]")["spark.redaction.regex"])
    secret = {
        "sasl.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.token",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.key.password",
    }
    assert secret <= set(SECURITY_OPTIONS)
    assert all(hidden.search(name) for name in secret)
    for name in ("security.protocol", "sasl.username", "ssl.ca.location", "ssl.key.location", "subscribe"):
        assert not hidden.search(name)


def test_settings_of_the_caller_win_and_lists_are_joined() -> None:
    java = "spark.driver.extraJavaOptions"
    ours = {"spark.jars": "delta.jar", "spark.ui.enabled": "false", java: "-Da=1"}
    theirs = {"spark.jars": "postgresql.jar", "spark.ui.enabled": "true", java: "-Xss4m"}
    merged = session._merged(ours, theirs)
    assert merged == {
        "spark.jars": "delta.jar,postgresql.jar",
        "spark.ui.enabled": "true",
        java: "-Da=1 -Xss4m",
    }


@pytest.mark.parametrize(
    "name,artifact",
    [
        ("scala-library-2.13.18.jar", "scala-library"),
        ("delta-spark_4.2_2.13-4.4.0.jar", "delta-spark_4.2_2.13"),
        ("jackson-core-2.21.2.jar", "jackson-core"),
    ],
)
def test_the_artifact_is_what_stands_before_the_version(name: str, artifact: str) -> None:
    assert jars.artifact_of(name) == artifact


def test_our_own_message_is_found_inside_spark_s() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to read.\nTraceback (most recent call last):\n"
        '  File "worker.py", line 3, in main\n    run()\n'
        "millrace.pipeline.errors.PipelineError: orders-0: offset 5 is gone\n SQLSTATE: 38000\n"
        "\tat org.apache.spark.sql.Something.method(Something.scala:12)\n"
    )
    assert explain(RuntimeError(text)) == "orders-0: offset 5 is gone"
    query = "millrace.pipeline.errors.PipelineError: orders-0 is gone\n=== Streaming Query ===\nOffsets: {}"
    assert explain(RuntimeError(query)) == "orders-0 is gone"
    assert explain(PipelineError("as it is")) == "as it is"


def test_a_python_error_of_a_worker_is_its_last_line() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no such thing\n'
    assert explain(RuntimeError(text)) == "ValueError: no such thing"


@pytest.mark.parametrize(
    "text,line",
    [
        (
            "[TABLE_NOT_FOUND] The table `x` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project",
            "[TABLE_NOT_FOUND] The table `x` cannot be found.; line 1 pos 14",
        ),
        (
            "An error occurred while calling o57.\n: java.lang.IllegalStateException: closed\n\tat a.b(C)\n",
            "IllegalStateException: closed",
        ),
    ],
)
def test_a_java_error_is_its_first_sentence(text: str, line: str) -> None:
    assert explain(RuntimeError(text)) == line
