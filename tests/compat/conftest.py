"""One broker for all compat tests: Millrace, or Apache Kafka with the same settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import CheckDisks, broker_class
from tests.harness.process import BrokerProcess

SETTINGS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "3",
    # Tests write old timestamps; retention must not delete them in the middle of a long run.
    "log.retention.check.interval.ms": "3600000",
}


@pytest.fixture(scope="session")
def broker(
    against: str, tmp_path_factory: pytest.TempPathFactory, check_disks: CheckDisks
) -> Iterator[BrokerProcess]:
    process = broker_class(against)(tmp_path_factory.mktemp("broker"), SETTINGS)
    process.start()
    yield process
    process.end()
    check_disks(process)
