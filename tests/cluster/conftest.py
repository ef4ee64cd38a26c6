"""Three brokers and an etcd as processes, for what only real ones can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.harness.etcd import EtcdMissing


@pytest.fixture(autouse=True)
def _only_millrace(against: str) -> None:
    if against != "millrace":
        pytest.skip("a promise of Millrace's own")


@pytest.fixture(scope="module")
def cluster(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if against != "millrace":
        pytest.skip("a promise of Millrace's own")
    directory: Path = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(directory)
    try:
        cluster.start()
    except EtcdMissing as error:
        pytest.skip(str(error))
    yield cluster
    cluster.end()
