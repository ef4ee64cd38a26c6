"""What is held to a rate, as Prometheus reads it."""

from __future__ import annotations

import asyncio

from prometheus_client.core import Metric

from millrace.broker.replication.throttles import Throttle
from millrace.broker.watching.throttle_metrics import throttle_families, throttle_figures
from tests.unit.metadata.virtual_time import run_virtually


def samples(families: list[Metric]) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["throttle"]): sample.value
        for family in families
        for sample in family.samples
    }


def test_rate_traffic_and_waits_of_each_throttle() -> None:
    async def body() -> None:
        leader, follower = Throttle(), Throttle()
        leader.set_rate(1_000)
        leader.take(3_000)
        leader.wait("a", lambda: None)
        leader.wait("b", lambda: None)
        await asyncio.sleep(0.5)
        found = samples(list(throttle_families(throttle_figures({"leader": leader, "follower": follower}))))
        assert found == {
            ("millrace_replication_throttle_rate_bytes", "leader"): 1_000,
            ("millrace_replication_throttled_bytes_total", "leader"): 3_000,
            ("millrace_replication_throttled_bytes_total", "follower"): 0,
            ("millrace_replication_throttle_waiting", "leader"): 2,
            ("millrace_replication_throttle_waiting", "follower"): 0,
            ("millrace_replication_throttle_wait_seconds_total", "leader"): 1.0,
            ("millrace_replication_throttle_wait_seconds_total", "follower"): 0.0,
        }

    run_virtually(body())
