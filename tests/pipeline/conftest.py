"""One Spark session and one broker for all tests in here; each test takes topics of its own."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.pipeline.declared.run.drivers import DRIVERS
from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic, unique_name
from tests.pipeline.shared_classes import end, share_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.pipeline)
            if item.get_closest_marker("timeout") is None:
                # The first test of all waits for Spark's start.
                item.add_marker(pytest.mark.timeout(600))
            # The bridge to the JVM leaves sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(autouse=True)
def _only_millrace(against: str) -> None:
    if against != "millrace":
        pytest.skip("pipelines are Millrace's own")


@pytest.fixture(scope="package", autouse=True)
def _shared_classes() -> None:
    """JVMs are started a dozen times here; what they load is the same each time."""
    from millrace.pipeline.errors import SparkUnavailable
    from millrace.pipeline.spark.session import require_spark

    with contextlib.suppress(SparkUnavailable):
        require_spark()
        share_classes()


# Not for the whole session: what Spark leaves to the garbage collector must not meet the tests behind these.
@pytest.fixture(scope="package")
def extra_jars() -> frozenset[str]:
    """Which of `s3` and the databases' drivers are here or to be had: tests without theirs are skipped."""
    from millrace.pipeline.errors import SparkUnavailable
    from millrace.pipeline.spark.jars import package_jars, s3_jars
    from millrace.pipeline.spark.session import hadoop_version, shipped_jars

    try:
        shipped = shipped_jars()
        wanted = {"s3": s3_jars(hadoop_version())}
    except (SparkUnavailable, ImportError):
        return frozenset()
    wanted |= {name: package_jars(driver.package) for name, driver in DRIVERS.items()}
    found: set[str] = set()
    for name, cache in wanted.items():
        with contextlib.suppress(SparkUnavailable):
            if cache.fetch(shipped) is not None:
                found.add(name)
    return frozenset(found)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory, extra_jars: frozenset[str]) -> Iterator[SparkSession]:
    """Spark on two local cores with Delta and the data source `millrace`; skipped where it cannot run."""
    from millrace.pipeline.errors import SparkUnavailable
    from millrace.pipeline.spark.session import make_session, require_delta

    try:
        require_delta()
        session = make_session(
            app_name="millrace-tests",
            master="local[2]",
            locations=["s3a://any"] if "s3" in extra_jars else [],
            packages=[driver.package for name, driver in DRIVERS.items() if name in extra_jars],
            config={
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
                # Tests are short: what the second compiler would gain later, it costs now.
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
                # The database of JDBC tests would leave its log in the current directory.
                " -Dderby.stream.error.file=/dev/null",
            },
        )
    except SparkUnavailable as missing:
        pytest.skip(str(missing))
    from millrace.pipeline import register

    register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        end(session)
        gc.collect()


@pytest.fixture(scope="package")
def broker(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MillraceProcess]:
    """One Millrace process for all tests with Spark; tests that harm brokers start their own."""
    if against != "millrace":
        pytest.skip("pipelines are Millrace's own")
    process = MillraceProcess(tmp_path_factory.mktemp("pipeline-broker"))
    process.start()
    yield process
    process.end()


@pytest.fixture
def make_topic(broker: MillraceProcess) -> MakeTopic:
    """Makes topics under fresh names: make_topic(partitions=3, configs={...}, stem="orders")."""

    def make(partitions: int = 1, configs: dict[str, str] | None = None, stem: str = "pipeline") -> str:
        return create_topic(broker.bootstrap, unique_name(stem), partitions, configs)

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh, empty topic with two partitions."""
    return make_topic(partitions=2)
