"""What a URL needs: jars for its store, settings of Spark, and the same store for pyarrow."""

from __future__ import annotations

import pytest

from millrace.client.errors import InvalidOption
from millrace.pipeline.source.options import read_options
from millrace.pipeline.spark import session, stores
from millrace.pipeline.spark.jars import package_jars, s3_jars
from millrace.pipeline.spark.spark_errors import explain
from millrace.pipeline.spark.stores import StoreUnavailable, read_store_access, s3_settings, scheme_of

SHIPPED = ["hadoop-client-api-3.5.0.jar", "hadoop-client-runtime-3.5.0.jar"]


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "location, scheme",
    [("s3a://b/x", "s3a"), ("S3://b", "s3"), ("/data/x", None), ("data", None), ("./a:b", None)],
)
def test_only_urls_have_a_scheme(location: str, scheme: str | None) -> None:
    assert scheme_of(location) == scheme


def test_a_bucket_needs_its_file_system_unless_somebody_brings_it() -> None:
    assert stores.needs_s3_jars(["/data", "s3a://bucket/x"], "", SHIPPED)
    assert stores.needs_s3_jars(["s3://bucket/x"], "io.delta:delta-spark:4", SHIPPED)
    assert not stores.needs_s3_jars(["/data", "hdfs://n/x"], "", SHIPPED)
    assert not stores.needs_s3_jars(["s3a://b"], "org.apache.hadoop:hadoop-aws:3.5.0", SHIPPED)
    assert not stores.needs_s3_jars(["s3a://b"], "", [*SHIPPED, "hadoop-aws-3.5.0.jar"])


@pytest.mark.parametrize(
    "url, package",
    [
        ("gs://bucket/lake", "com.google.cloud.bigdataoss:gcs-connector:"),
        ("abfss://c@account.dfs.core.windows.net/lake", "org.apache.hadoop:hadoop-azure:3.5.0"),
    ],
)
def test_a_store_without_its_jar_says_what_to_add(url: str, package: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"--spark-conf spark.jars.packages={package}"):
        stores.require_connectors([url], "", SHIPPED, "3.5.0")
    stores.require_connectors([url, "/data", "s3a://b"], f"{package}1.0", SHIPPED, "3.5.0")


def test_the_file_system_of_s3_is_that_of_spark_s_hadoop_without_all_of_amazon() -> None:
    cache = s3_jars("3.5.0")
    assert "org.apache.hadoop:hadoop-aws:3.5.0" in cache.coordinates()
    assert "software.amazon.awssdk:s3:" in cache.coordinates()
    assert "software.amazon.awssdk:bundle" in cache.exclusions()
    # A Hadoop that we do not know brings what it wants to bring.
    other = s3_jars("3.9.9")
    assert (other.coordinates(), other.excluded) == ("org.apache.hadoop:hadoop-aws:3.9.9", ())


def test_what_neither_is_here_nor_comes_by_maven_is_named_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    monkeypatch.setattr(session, "shipped_jars", lambda: SHIPPED)
    settings = session._jar_settings([s3_jars("3.5.0"), package_jars("org.example:driver:1.0")])
    assert settings["spark.jars.packages"].endswith(",org.example:driver:1.0")
    assert settings["spark.jars.excludes"] == "software.amazon.awssdk:bundle"
    assert settings["spark.jars.ivy"] == "/nowhere/millrace/ivy"
    assert "spark.jars" not in settings


def test_an_endpoint_means_paths_not_names_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_settings(None) == {}
    assert s3_settings("http://127.0.0.1:9000/") == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    secure = s3_settings("store.example:9000")
    assert secure["spark.hadoop.fs.s3a.endpoint"] == "https://store.example:9000"
    assert secure["spark.hadoop.fs.s3a.endpoint.region"] == "eu-north-1"
    with pytest.raises(InvalidOption, match="no endpoint of a store"):
        s3_settings("ftp://x/y")


def test_the_source_takes_hadoop_s_names_for_a_store() -> None:
    given = {
        "bootstrap.servers": "localhost:9092",
        "subscribe": "orders",
        "archive": "s3a://bucket/lake",
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.access.key": "me",
        "fs.s3a.secret.key": "mine",
    }
    access = read_options(given, streaming=False).store
    assert (access.endpoint, access.access_key, access.secret_key) == ("http://127.0.0.1:9000", "me", "mine")
    with pytest.raises(InvalidOption, match="go together"):
        read_store_access({"fs.s3a.access.key": "me"})


def test_pyarrow_is_led_to_the_same_store(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    filesystem, inside = read_store_access({"fs.s3a.access.key": "me", "fs.s3a.secret.key": "mine"}).open_s3(
        "bucket/lake/orders"
    )
    assert inside == "bucket/lake/orders"
    assert filesystem.type_name == "s3"
    assert filesystem.region == "us-east-1"


def test_a_session_of_somebody_else_without_the_jar_gets_a_hint() -> None:
    text = (
        "An error occurred while calling o1.load.\n: java.lang.RuntimeException:"
        " java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n"
        "\tat org.apache.hadoop.conf.Configuration.getClass(Configuration.java:2833)\n"
    )
    assert "make_session(locations=[URL]) brings the one for S3" in explain(RuntimeError(text))


@pytest.mark.parametrize(
    "master, is_here",
    [
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077,other:7077", True),
        ("spark://host:7077", False),
        ("yarn", False),
    ],
)
def test_a_master_on_this_machine_has_its_driver_here(master: str, is_here: bool) -> None:
    assert (session._base_settings(master).get("spark.driver.host") == "127.0.0.1") == is_here
