"""What measurements say of a topic: rates, percentiles, hot partitions and keys, lag. No Spark, no plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.pipeline.analytics.measurement import NEGATIVE, Measure, Measurement, percentile

HOT: Final = 2.0
"""A partition is hot if it has this many times the share that an even spread would give it."""


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What one partition took of a topic's messages."""

    partition: int
    messages: float
    bytes: float
    share: float
    is_hot: bool


@dataclass(frozen=True, slots=True)
class KeyLoad:
    """What one key took of a topic's messages, and in which partitions."""

    key: str
    partitions: tuple[int, ...]
    messages: float
    bytes: float
    share: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Counts by class, and the percentiles read off them."""

    counts: dict[int, float]
    largest: float
    p50: float | None
    p99: float | None
    negative: float = 0.0


@dataclass(slots=True)
class TopicSummary:
    """What the measurements say about one topic, ready to be shown."""

    topic: str
    runs: int = 0
    bucket_ms: int = 1000
    messages: float = 0.0
    bytes: float = 0.0
    first_ms: int | None = None
    last_ms: int | None = None
    by_time: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """Time -> partition -> messages and bytes."""
    partitions: list[PartitionLoad] = field(default_factory=list)
    keys: list[KeyLoad] = field(default_factory=list)
    distinct_keys: float = 0.0
    null_keys: float = 0.0
    sizes: Distribution | None = None
    latencies: Distribution | None = None
    arrivals: Distribution | None = None
    lag: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Group -> (time, messages behind in all partitions)."""

    @property
    def span_s(self) -> float:
        """The time from the first bucket's beginning to the last one's end."""
        if self.first_ms is None or self.last_ms is None:
            return 0.0
        return (self.last_ms - self.first_ms + self.bucket_ms) / 1000

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.span_s if self.span_s else 0.0

    @property
    def peak_per_s(self) -> float:
        """The rate in the busiest bucket."""
        totals = (sum(load[0] for load in row.values()) for row in self.by_time.values())
        return max(totals, default=0.0) / (self.bucket_ms / 1000)

    @property
    def skew(self) -> float:
        """The busiest partition over the mean: 1 is even."""
        return max((each.share for each in self.partitions), default=0.0) * len(self.partitions)

    @property
    def hot_partitions(self) -> list[PartitionLoad]:
        return [each for each in self.partitions if each.is_hot]


def summarize(measurements: Sequence[Measurement], topic: str) -> TopicSummary:
    """Sum up what the newest run and those that it continues have read, and what all runs have watched."""
    ours = [each for each in measurements if each.topic == topic]
    runs = chained_runs(ours)
    counted = [each for each in ours if each.run_ms in runs]
    summary = TopicSummary(topic, runs=len(runs))
    buckets = [int(each.value) for each in counted if each.measure is Measure.BUCKET_MS]
    summary.bucket_ms = max(buckets, default=1000)
    _add_times(summary, counted)
    _add_partitions(summary, counted)
    _add_keys(summary, counted)
    summary.sizes = _distribution(counted, Measure.SIZES, Measure.SIZE_MAX)
    summary.latencies = _distribution(counted, Measure.LATENCIES, Measure.LATENCY_MAX)
    summary.arrivals = _distribution(ours, Measure.ARRIVALS, Measure.ARRIVAL_MAX)
    summary.lag = _lag(ours)
    return summary


def chained_runs(measurements: Iterable[Measurement]) -> set[int]:
    """The newest run and those before it that it does not read again: runs that can be added up."""
    starts: dict[int, dict[int, float]] = defaultdict(dict)
    ends: dict[int, dict[int, float]] = defaultdict(dict)
    topic_ids: dict[int, str | None] = {}
    for each in measurements:
        if each.partition is None:
            continue
        if each.measure is Measure.START_OFFSET:
            starts[each.run_ms][each.partition] = each.value
            topic_ids[each.run_ms] = each.label
        elif each.measure is Measure.END_OFFSET:
            ends[each.run_ms][each.partition] = each.value
    chain: list[int] = []
    for run in sorted(starts, reverse=True):
        if chain:
            newer = chain[-1]
            if topic_ids[run] != topic_ids[newer]:
                break
            if any(starts[newer].get(number, end) < end for number, end in ends[run].items()):
                break
        chain.append(run)
    return set(chain)


def _add_times(summary: TopicSummary, measurements: Iterable[Measurement]) -> None:
    """Put the counts of all runs into the coarsest buckets that any of them had."""
    table: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for each in measurements:
        if each.measure not in (Measure.MESSAGES, Measure.BYTES) or each.time_ms is None:
            continue
        start = each.time_ms // summary.bucket_ms * summary.bucket_ms
        table[start][each.partition or 0][each.measure is Measure.BYTES] += each.value
    summary.by_time = {
        start: {partition: (load[0], load[1]) for partition, load in sorted(row.items())}
        for start, row in sorted(table.items())
    }
    if summary.by_time:
        summary.first_ms, summary.last_ms = min(summary.by_time), max(summary.by_time)


def _add_partitions(summary: TopicSummary, measurements: Iterable[Measurement]) -> None:
    # Partitions without a record count too: they are what makes the others hot.
    loads: dict[int, list[float]] = {
        each.partition: [0.0, 0.0]
        for each in measurements
        if each.measure is Measure.END_OFFSET and each.partition is not None
    }
    for row in summary.by_time.values():
        for partition, (messages, size) in row.items():
            load = loads.setdefault(partition, [0.0, 0.0])
            load[0] += messages
            load[1] += size
    summary.messages = sum(load[0] for load in loads.values())
    summary.bytes = sum(load[1] for load in loads.values())
    even = 1 / len(loads) if loads else 1.0
    for partition, (messages, size) in sorted(loads.items()):
        share = messages / summary.messages if summary.messages else 0.0
        is_hot = len(loads) > 1 and share >= HOT * even
        summary.partitions.append(PartitionLoad(partition, messages, size, share, is_hot))


def _add_keys(summary: TopicSummary, measurements: Iterable[Measurement]) -> None:
    loads: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    places: dict[str, set[int]] = defaultdict(set)
    for each in measurements:
        if each.measure is Measure.KEYS:
            # A run counts only its own keys: together the runs have at least as many as the richest one.
            summary.distinct_keys = max(summary.distinct_keys, each.value)
        elif each.measure is Measure.NULL_KEYS:
            summary.null_keys += each.value
        elif each.measure in (Measure.KEY_MESSAGES, Measure.KEY_BYTES) and each.label is not None:
            loads[each.label][each.measure is Measure.KEY_BYTES] += each.value
            places[each.label].add(each.partition or 0)
    summary.keys = sorted(
        (
            KeyLoad(key, tuple(sorted(places[key])), messages, size, _share(messages, summary.messages))
            for key, (messages, size) in loads.items()
        ),
        key=lambda load: (-load.messages, load.key),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _distribution(
    measurements: Iterable[Measurement], measure: Measure, most: Measure
) -> Distribution | None:
    counts: dict[int, float] = defaultdict(float)
    largest = 0.0
    for each in measurements:
        if each.measure is measure and each.label is not None:
            counts[int(each.label)] += each.value
        elif each.measure is most:
            largest = max(largest, each.value)
    if not counts:
        return None
    negative = counts.pop(NEGATIVE, 0.0)
    plain = dict(sorted(counts.items()))
    # A percentile that is read off a class could come out above the largest value.
    p50, p99 = (_at_most(percentile(plain, share), largest) for share in (0.5, 0.99))
    return Distribution(plain, largest, p50, p99, negative)


def _at_most(value: float | None, largest: float) -> float | None:
    return None if value is None else min(value, largest)


def _lag(measurements: Iterable[Measurement]) -> dict[str, list[tuple[int, float]]]:
    totals: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in measurements:
        if each.measure is Measure.LAG and each.label is not None and each.time_ms is not None:
            totals[each.label][each.time_ms] += each.value
    return {group: sorted(series.items()) for group, series in sorted(totals.items())}
