"""The page of metrics: every figure that is collected is on it, under a name that Prometheus takes."""

from __future__ import annotations

from millrace.broker.network.dispatch import LATENCY_BOUNDS_S
from millrace.broker.watching.group_metrics import GroupFigures
from millrace.broker.watching.listener_metrics import ListenerFigures
from millrace.broker.watching.metrics import (
    ApiFigures,
    DirectoryFigures,
    Figures,
    PartitionFigures,
    TopicFigures,
    render,
)
from millrace.broker.watching.quota_metrics import QuotaFigures
from millrace.broker.watching.transaction_metrics import transaction_figures
from millrace.core.lanes import LaneFigures

BUCKETS = [2, 1] + [0] * (len(LATENCY_BOUNDS_S) - 2) + [1]

FIGURES = Figures(
    topics=[TopicFigures("orders", 100, 200, 3, 4, 1, 5, 2, 6)],
    partitions=[PartitionFigures("orders", "0", 1_000, 5, 25, 2)],
    directories=[DirectoryFigures("/a", 500, False, 3, 1), DirectoryFigures("/b", None, True, 0, 0)],
    apis=[ApiFigures("PRODUCE", 4, 1.5, BUCKETS, {3: 2, 999: 1})],
    refused={"idle": 7},
    background_failures={"log-cleaner": 2},
    lanes=[LaneFigures("files", 3, 0.5)],
    groups=GroupFigures({}, {}, [], []),
    queues=[],
    transactions=transaction_figures((), 0),
    throttles=[],
    listeners=ListenerFigures([], {}, {}, []),
    lateness=([0] * 11, 0),
    quotas=QuotaFigures([], [], 0, 0, {}, []),
    gauges={"millrace_topics": ("Topics.", 12)},
    counters={"millrace_connections_accepted": ("Accepted.", 8)},
)


def lines() -> list[str]:
    return [line for line in render(FIGURES).decode().splitlines() if not line.startswith("#")]


def test_figures_of_topics_partitions_and_directories() -> None:
    found = lines()
    assert 'millrace_topic_bytes_in_total{topic="orders"} 100.0' in found
    assert 'millrace_topic_fetch_failures_total{topic="orders"} 2.0' in found
    assert 'millrace_log_end_offset{partition="0",topic="orders"} 25.0' in found
    assert 'millrace_log_directory_offline{directory="/b"} 1.0' in found
    assert 'millrace_log_directory_free_bytes{directory="/a"} 500.0' in found


def test_what_a_failed_disk_cannot_tell_is_left_out() -> None:
    assert not [
        line for line in lines() if line.startswith('millrace_log_directory_free_bytes{directory="/b"')
    ]


def test_latencies_are_added_up_from_bucket_to_bucket() -> None:
    name = 'millrace_request_duration_seconds_bucket{api="PRODUCE",le='
    found = {
        line.split("le=")[1].split('"')[1]: line.split()[-1] for line in lines() if line.startswith(name)
    }
    assert list(found.values())[:2] == ["2.0", "3.0"]
    assert found["+Inf"] == "4.0"
    assert len(found) == len(LATENCY_BOUNDS_S) + 1


def test_errors_have_kafkas_names_where_they_have_one() -> None:
    found = lines()
    assert 'millrace_request_errors_total{api="PRODUCE",error="UNKNOWN_TOPIC_OR_PARTITION"} 2.0' in found
    assert 'millrace_request_errors_total{api="PRODUCE",error="999"} 1.0' in found


def test_plain_figures_lanes_and_failures() -> None:
    found = lines()
    assert "millrace_topics 12.0" in found
    assert "millrace_connections_accepted_total 8.0" in found
    assert 'millrace_refused_total{reason="idle"} 7.0' in found
    assert 'millrace_background_failures_total{task="log-cleaner"} 2.0' in found
    assert 'millrace_lane_oldest_seconds{lane="files"} 0.5' in found
