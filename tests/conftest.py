"""Options and fixtures of the tests with real processes. `--against kafka` runs them on the reference."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.disks import dump_log_segments
from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.kcat import Kcat, KcatUnavailable, locate_kcat
from tests.harness.millrace import MillraceProcess
from tests.harness.process import BrokerProcess
from tools.kafka_distribution import KafkaUnavailable

# The same examples on every run, however slow the machine is: a change is judged by what it did, not by luck.
# HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

HERE = Path(__file__).parent
ELSE = "clients"
LANES = {
    "faults": ("cluster", "integration", "conformance/store"),
    "spark": ("pipeline",),
    # What is in here only computes, however slowly: it may run beside tests that wait for real processes.
    "computing": ("unit", "sim", "conformance/wire", "conformance/volume"),
}
"""The folders of tests that `make test` runs one after the other (tools/run_tests.py), but for the rest."""
TIMED = "timed"

# Brokers, commands and workers are started hundreds of times: they are to find compiled code, whatever the
# environment says. Spark's drivers live for seconds: what the second compiler would gain later, it costs now.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

StartBroker = Callable[..., BrokerProcess]
CheckDisks = Callable[[BrokerProcess], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        choices=("millrace", "kafka"),
        default=os.environ.get("MILLRACE_TEST_AGAINST", "millrace"),
        help="which broker the compat tests talk to: Millrace, or Apache Kafka to validate the tests",
    )
    parser.addoption(
        "--soak",
        action="store_true",
        help="only tests marked soak, the long counts that all other runs leave out: `make soak`",
    )
    parser.addoption(
        "--lane",
        choices=(ELSE, *LANES, TIMED),
        help="only tests with real clients, of faults, on Spark, that compute, or that measure time",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "compat: real clients against a real process; also runs with --against kafka",
        "integration: real processes, signals, hostile input",
        "java: needs Java and Kafka's jars",
        "millrace_only: promises that Apache Kafka does not make; skipped with --against kafka",
        "soak: a count that takes minutes; left out unless --soak is given, as `make soak` does",
        "timed: measures real time, so that `make test` runs it beside no other test",
    ):
        config.addinivalue_line("markers", line)
    # kafka-python reads its schemas this way while it is imported, where the caller is importlib itself.
    config.addinivalue_line("filterwarnings", "ignore:(open|read)_text is deprecated:DeprecationWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules without a test of the lane are not even loaded, unless they are named on the command line."""
    lane = config.getoption("--lane")
    is_asked_for = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if lane is None or is_asked_for or not collection_path.match("test_*.py"):
        return None
    if lane == TIMED:
        return "mark.timed" not in collection_path.read_text(encoding="utf-8") or None
    return _lane_of_path(collection_path) != lane or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = bool(config.getoption("--soak"))
    _keep(config, items, lambda item: (item.get_closest_marker("soak") is not None) == soak)
    lane = config.getoption("--lane")
    if lane is not None:
        _keep(config, items, lambda item: _lane_of(item) == lane)
    against = config.getoption("--against")
    skip = pytest.mark.skip(reason="a promise of Millrace's own")
    for item in items:
        for folder in ("compat", "integration"):
            if HERE / folder in item.path.parents:
                item.add_marker(folder)
        if HERE / "cluster" in item.path.parents:
            item.add_marker("millrace_only")
        if "java" in getattr(item, "fixturenames", ()):
            item.add_marker("java")
        if against == "kafka" and item.get_closest_marker("millrace_only"):
            item.add_marker(skip)


def _keep(config: pytest.Config, items: list[pytest.Item], is_wanted: Callable[[pytest.Item], bool]) -> None:
    others = [item for item in items if not is_wanted(item)]
    items[:] = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=others)


def _lane_of(item: pytest.Item) -> str:
    return TIMED if item.get_closest_marker("timed") is not None else _lane_of_path(item.path)


def _lane_of_path(path: Path) -> str:
    for lane, folders in LANES.items():
        if any(path.is_relative_to(HERE / folder) for folder in folders):
            return lane
    return ELSE


@pytest.fixture(scope="session")
def against(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--against"))


@pytest.fixture(scope="session")
def java_if_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaHost | None]:
    """One JVM with Kafka's clients and tools for the whole session, started when it is first needed."""
    try:
        host = JavaHost(tmp_path_factory.mktemp("java"))
    except KafkaUnavailable:
        yield None
        return
    yield host
    host.stop()


@pytest.fixture(scope="session")
def java(java_if_there: JavaHost | None) -> JavaHost:
    if java_if_there is None:
        pytest.skip("no Java, or Kafka's jars cannot be fetched")
    return java_if_there


@pytest.fixture(scope="session")
def kcat() -> Kcat:
    try:
        return locate_kcat()
    except KcatUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def check_disks(java_if_there: JavaHost | None) -> CheckDisks:
    """A check for the end of a broker's life: Kafka's tool finds no fault in what it left on disk."""

    def check(broker: BrokerProcess) -> None:
        if java_if_there is None:
            return
        directories = broker.partition_dirs()
        report = dump_log_segments(java_if_there, directories)
        assert not report.complaints, "\n".join(report.complaints[:50])
        # A partition without records may have no files yet.
        assert report.files_checked >= sum(any(path.glob("*.log")) for path in directories)

    return check


def broker_class(against: str) -> type[MillraceProcess | KafkaProcess]:
    return KafkaProcess if against == "kafka" else MillraceProcess


@pytest.fixture(scope="module")
def start_broker(
    against: str,
    tmp_path_factory: pytest.TempPathFactory,
    check_disks: CheckDisks,
) -> Iterator[StartBroker]:
    """Starts brokers that live until the module's end; then their disks are judged."""
    started: list[BrokerProcess] = []

    def start(settings: Mapping[str, str] | None = None, *, directory: Path | None = None) -> BrokerProcess:
        broker = broker_class(against)(directory or tmp_path_factory.mktemp("broker"), settings)
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.end()
    for broker in started:
        check_disks(broker)
