"""What share groups are doing in the partitions that this broker leads: for Prometheus, and as documents.

Whoever serves share partitions counts in plain numbers; here they are only read. A group that no member
fetches from has no share partitions in memory: of it, its coordinator knows how far it is (`group_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.queues.live_share import LiveShare, ShareStats
    from millrace.broker.queues.share_partitions import SharePartitions
    from millrace.groups.lag import LagReader

COUNTS: Final = (
    ("acquired", "Records that members were given."),
    ("redelivered", "Of the records given, those that were delivered before."),
    ("accepted", "Records that members have done."),
    ("released", "Records that members gave back."),
    ("rejected", "Records that members gave up."),
    ("renewed", "Records whose lock a member made longer."),
    ("lock_timeouts", "Records whose lock ended before anybody acknowledged them."),
    ("returned", "Records that came back because their member was gone."),
    ("dead_lettered", "Records whose dead letter is committed."),
    ("refused_acks", "Acknowledgements that were refused."),
)
"""What is counted for a group since it came to this broker."""
_ATTRIBUTES: Final = {"accepted": "accept", "released": "release", "rejected": "reject", "renewed": "renew"}


class SharePartitionFigures(NamedTuple):
    """A group in one partition that this broker leads."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    lag: int
    oldest_age_ms: int | None
    """Age of the first record that is not done; None if nothing waits, or it has no timestamp."""
    in_flight: int
    dead_letters_waiting: int
    is_delivering: bool


class QueueFigures(NamedTuple):
    """A group and what was counted for it here."""

    group: str
    counts: Mapping[str, int]
    partitions: Sequence[SharePartitionFigures]


async def queue_figures(
    shares: SharePartitions, lags: LagReader, now_ms: int, group_id: str | None = None
) -> list[QueueFigures]:
    """Of one group or of all those that have share partitions here."""
    wanted = sorted(shares.groups) if group_id is None else [group_id]
    live = [
        (group, [each for each in shares.groups.get(group, {}).values() if each.rules is not None])
        for group in wanted
    ]
    begun = [share for _, of_group in live for share in of_group]
    measured = await lags.measure(
        [(each.partition.topic, each.partition.index, _start_of(each)) for each in begun]
    )
    ages = {
        share: lag.time_ms
        for share, lag in zip(begun, measured, strict=True)
        if lag is not None and lag.messages
    }
    found: list[QueueFigures] = []
    for group, of_group in live:
        stats = shares.stats.get(group)
        if stats is not None:
            figures = [_figures(each, ages.get(each), now_ms) for each in of_group]
            found.append(QueueFigures(group, _counts(stats), figures))
    return found


def queue_document(figures: QueueFigures) -> dict[str, Any]:
    return {
        "group": figures.group,
        "counts": dict(figures.counts),
        "partitions": [each._asdict() for each in figures.partitions],
    }


def queue_families(queues: Sequence[QueueFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text in COUNTS:
        family = CounterMetricFamily(f"millrace_share_{name}", text, labels=("group",))
        for queue in queues:
            family.add_metric((queue.group,), queue.counts[name])
        yield family
    for name, text, attribute in (
        ("lag_messages", "Records that the group is not done with.", "lag"),
        ("oldest_age_seconds", "Age of the first record that the group is not done with.", "oldest_age_ms"),
        ("in_flight", "Records that members hold.", "in_flight"),
        ("dead_letters_waiting", "Records whose dead letter is not written yet.", "dead_letters_waiting"),
        ("delivering", "0 while delivery is paused, or stopped by dead letters.", "is_delivering"),
    ):
        gauge = GaugeMetricFamily(f"millrace_share_{name}", text, labels=("group", "topic", "partition"))
        for queue in queues:
            for each in queue.partitions:
                value = getattr(each, attribute)
                if attribute == "oldest_age_ms":
                    value = None if value is None else value / 1000
                if value is not None:
                    gauge.add_metric((queue.group, each.topic, str(each.partition)), float(value))
        yield gauge


def _start_of(share: LiveShare) -> int:
    assert share.rules is not None, share.key
    return share.rules.start_offset


def _figures(share: LiveShare, age_ms: int | None, now_ms: int) -> SharePartitionFigures:
    rules, partition = share.rules, share.partition
    assert rules is not None, share.key
    end_offset = partition.log.high_watermark
    return SharePartitionFigures(
        topic=partition.topic,
        partition=partition.index,
        start_offset=rules.start_offset,
        end_offset=end_offset,
        lag=max(0, end_offset - rules.start_offset - rules.delivery_complete_count),
        oldest_age_ms=age_ms,
        in_flight=rules.acquired_count,
        dead_letters_waiting=rules.archiving_count,
        is_delivering=rules.is_delivering(now_ms),
    )


def _counts(stats: ShareStats) -> dict[str, int]:
    return {name: getattr(stats, _ATTRIBUTES.get(name, name)) for name, _ in COUNTS}
