"""What replication is held to, and how long replicas wait for it, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from millrace.broker.replication.throttles import Throttle

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.replication.replication import Replication


class ThrottleFigures(NamedTuple):
    """One throttle, its rate and those whom it holds back."""

    throttle: str
    rate: int | None
    """None without a limit."""
    passed_bytes: int
    waiting: int
    waited_s: float


def throttles_of(replication: Replication) -> dict[str, Throttle]:
    """The throttles by what they hold back: what this broker sends, fetches, and fetches because it is
    new."""
    return {
        "leader": replication.sessions.throttle,
        "follower": replication.throttles.named,
        "new_broker": replication.throttles.arriving,
    }


def throttle_figures(throttles: Mapping[str, Throttle]) -> list[ThrottleFigures]:
    return [
        ThrottleFigures(name, each.rate, each.passed_bytes, each.waiting_count, each.waited_s)
        for name, each in throttles.items()
    ]


def throttle_families(throttles: list[ThrottleFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for kind, name, text, attribute in (
        (
            GaugeMetricFamily,
            "millrace_replication_throttle_rate_bytes",
            "Bytes a second that all throttled replicas may have together; absent without a limit.",
            "rate",
        ),
        (
            CounterMetricFamily,
            "millrace_replication_throttled_bytes",
            "Bytes of throttled replicas, as a leader sent them or a follower fetched them.",
            "passed_bytes",
        ),
        (
            GaugeMetricFamily,
            "millrace_replication_throttle_waiting",
            "Replicas that wait for the rate to let them go on.",
            "waiting",
        ),
        (
            CounterMetricFamily,
            "millrace_replication_throttle_wait_seconds",
            "How long replicas have waited for the rate, added up over all of them.",
            "waited_s",
        ),
    ):
        family = kind(name, text, labels=("throttle",))
        for figures in throttles:
            value = getattr(figures, attribute)
            if value is not None:
                family.add_metric((figures.throttle,), value)
        yield family
