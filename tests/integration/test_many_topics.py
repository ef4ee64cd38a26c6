"""Thousands of topics in a row, while the broker flushes, writes checkpoints, deletes and is looked at.

With default settings a broker ended after some 20,000 partitions: a thread entered new logs into the tables
that the loop went through (`dictionary changed size during iteration`)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic

from tests.harness.topics import admin_client
from tests.integration.conftest import StartMillrace

TOPICS_PER_REQUEST = 50
PARTITIONS = 10
ALL_THE_TIME = {
    "log.flush.scheduler.interval.ms": "5",
    "log.flush.offset.checkpoint.interval.ms": "5",
    "replica.high.watermark.checkpoint.interval.ms": "5",
    "log.retention.check.interval.ms": "5",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "5",
}


@pytest.mark.parametrize(
    "settings, requests",
    [
        pytest.param(ALL_THE_TIME, 6, id="3000-partitions"),
        pytest.param({}, 48, id="24000-partitions", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_thousands_of_topics_are_created_in_a_row(
    start_millrace: StartMillrace, settings: dict[str, str], requests: int
) -> None:
    broker = start_millrace(settings)
    admin = admin_client(broker.bootstrap)
    for number in range(requests):
        topics = [
            NewTopic(f"topic-{number}-{each}", num_partitions=PARTITIONS, replication_factor=1)
            for each in range(TOPICS_PER_REQUEST)
        ]
        for created in admin.create_topics(topics, request_timeout=60, operation_timeout=60).values():
            created.result(90)
        status, _ = broker.http("/metrics", timeout_s=30)
        assert status == 200
        if number % 2 == 1:
            names = [f"topic-{number - 1}-{each}" for each in range(0, TOPICS_PER_REQUEST, 2)]
            for deleted in admin.delete_topics(names, request_timeout=60, operation_timeout=60).values():
                deleted.result(90)
    left = requests * TOPICS_PER_REQUEST - requests // 2 * TOPICS_PER_REQUEST // 2
    page = broker.http("/metrics", timeout_s=30)[1]
    assert f"millrace_partitions {float(left * PARTITIONS)}" in page
    (offline,) = [line for line in page.splitlines() if line.startswith("millrace_log_directory_offline{")]
    assert offline.endswith(" 0.0"), offline
    assert broker.stop(120) == 0
    broker.start(120)
    assert f"millrace_partitions {float(left * PARTITIONS)}" in broker.http("/metrics", timeout_s=30)[1]
