"""Workers of a local Spark find the installed PySpark first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from millrace.pipeline.spark import worker_path
from millrace.pipeline.spark.worker_path import add_worker_site, prefer_installed_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITE = Path(worker_path.__file__).parent / "worker_site"


class Context:
    def __init__(self, master: str) -> None:
        self.master = master
        self.environment: dict[str, str] = {}


class Session:
    def __init__(self, master: str) -> None:
        self.sparkContext = Context(master)


@pytest.fixture(autouse=True)
def no_other_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_the_site_stands_first_and_only_once() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(("/a", "/b"))}
    add_worker_site(environment)
    add_worker_site(environment)
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/a", "/b"]
    empty: dict[str, str] = {}
    add_worker_site(empty)
    assert empty == {"PYTHONPATH": str(SITE)}


def test_another_spark_that_was_asked_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    environment: dict[str, str] = {}
    add_worker_site(environment)
    assert environment == {}


@pytest.mark.parametrize(
    "master, is_ours", [("local[2]", True), ("spark://cluster:7077", False), ("", False)]
)
def test_only_workers_of_a_local_spark_have_our_packages(master: str, is_ours: bool) -> None:
    session = Session(master)
    prefer_installed_pyspark(cast("SparkSession", session))
    assert bool(session.sparkContext.environment) is is_ours


def test_a_session_of_spark_connect_is_left_alone() -> None:
    prefer_installed_pyspark(cast("SparkSession", object()))
