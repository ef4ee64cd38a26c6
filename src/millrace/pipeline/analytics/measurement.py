"""One measured figure, as it lies in the Delta table, and the names of all measures.

Sizes and latencies are counted in classes of equal ratio, eight to each doubling, so that runs can be added
up and percentiles read off within 9 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CLASSES_PER_DOUBLING: Final = 8
BELOW_ONE: Final = -1
NEGATIVE: Final = -2
"""Classes outside the scale: values below one, and latencies below zero, which differing clocks cause."""


class Measure(StrEnum):
    """What a measurement counts. The text is what the table holds."""

    MESSAGES = "messages"
    """Messages by partition and time."""
    BYTES = "bytes"
    """Bytes of keys and values, by partition and time."""
    SIZES = "sizes"
    """Messages by class of size, which is the label."""
    SIZE_MAX = "size_max"
    LATENCIES = "latencies"
    """Messages by class of latency in ms, which is the label."""
    LATENCY_MAX = "latency_max"
    ARRIVALS = "arrivals"
    """Messages by class of the ms from creation to arrival at a waiting reader, while a run watched."""
    ARRIVAL_MAX = "arrival_max"
    KEYS = "keys"
    """Distinct keys of one run."""
    NULL_KEYS = "null_keys"
    KEY_MESSAGES = "key_messages"
    KEY_BYTES = "key_bytes"
    """Messages and bytes of the most frequent keys, by partition; the key is the label."""
    LAG = "lag"
    """Messages that a group is behind, by partition and time; the group is the label."""
    START_OFFSET = "start_offset"
    END_OFFSET = "end_offset"
    """What a run has read, by partition; the topic's id is the label."""
    BUCKET_MS = "bucket_ms"
    """How long the buckets of MESSAGES and BYTES are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure that a run of the analytics found, as a row of its table."""

    run_ms: int
    """When the run began; this names the run."""
    topic: str
    measure: Measure
    value: float
    partition: int | None = None
    time_ms: int | None = None
    label: str | None = None


def class_bounds(number: int) -> tuple[float, float]:
    """Where a class begins and ends."""
    if number < 0:
        return 0.0, 1.0
    return 2 ** (number / CLASSES_PER_DOUBLING), 2 ** ((number + 1) / CLASSES_PER_DOUBLING)


def percentile(counts: Mapping[int, float], share: float) -> float | None:
    """The value below which `share` of all lie, read off the classes; None if there are none."""
    total = sum(counts.values())
    if not total:
        return None
    wanted = share * total
    for number in sorted(counts):
        if wanted <= counts[number]:
            low, high = class_bounds(number)
            part = wanted / counts[number]
            return 0.0 if number < 0 else low * (high / low) ** part
        wanted -= counts[number]
    return class_bounds(max(counts))[1]


def class_of(value: float) -> int:
    """The class that a value falls into; the same rule as the SQL of `measures`."""
    if value < 0:
        return NEGATIVE
    return math.floor(math.log2(value) * CLASSES_PER_DOUBLING) if value >= 1 else BELOW_ONE


def total(measurements: Iterable[Measurement], measure: Measure) -> float:
    return sum(each.value for each in measurements if each.measure is measure)
