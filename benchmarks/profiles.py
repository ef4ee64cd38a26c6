"""How much of everything is measured: the quick profile checks, the standard one is for published figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How long and how much each workload measures."""

    name: str
    rounds: int
    java_records: dict[int, int]
    """Records by record size; a quarter more are sent before the clock starts."""
    produce_s: float
    written_bytes_max: int
    """A measurement ends early once this much is written, with all replicas: it fits into memory that is at
    hand. A virtual machine gets more of it from its host, which takes longer than all that a broker does."""
    pipelined_s: float
    consume_bytes: int
    consume_passes: int
    latency_messages: int
    requests_s: float
    connection_counts: tuple[int, ...]
    start_ups: int
    partition_counts: tuple[int, ...]
    partitions_s: float
    idle_s: float
    log_sizes_bytes: tuple[int, ...]
    fetches: int
    kills: int
    restarts: int
    rest_s: float
    """The pause between two rounds."""


STANDARD: Final = Profile(
    name="standard",
    rounds=3,
    java_records={100: 8_000_000, 1_000: 1_000_000},
    produce_s=3.0,
    written_bytes_max=900 * MB,
    pipelined_s=2.5,
    consume_bytes=800 * MB,
    consume_passes=2,
    latency_messages=8_000,
    requests_s=3.0,
    connection_counts=(1, 10, 100, 1_000),
    start_ups=3,
    partition_counts=(1, 10, 100, 1_000, 4_000),
    partitions_s=3.0,
    idle_s=4.0,
    log_sizes_bytes=(100 * MB, 1_000 * MB, 4_000 * MB),
    fetches=1_000,
    kills=30,
    restarts=10,
    rest_s=0.8,
)

QUICK: Final = Profile(
    name="quick",
    rounds=1,
    java_records={100: 600_000, 1_000: 120_000},
    produce_s=1.0,
    written_bytes_max=900 * MB,
    pipelined_s=1.0,
    consume_bytes=300 * MB,
    consume_passes=1,
    latency_messages=2_000,
    requests_s=1.0,
    connection_counts=(1, 10, 100, 1_000),
    start_ups=1,
    partition_counts=(1, 100, 1_000),
    partitions_s=1.0,
    idle_s=2.0,
    log_sizes_bytes=(100 * MB, 500 * MB),
    fetches=300,
    kills=8,
    restarts=4,
    rest_s=0.4,
)

# The smallest amounts of everything: they show that all parts work, and nothing else.
SMOKE: Final = Profile(
    name="smoke",
    rounds=1,
    java_records={100: 20_000, 1_000: 10_000},
    produce_s=0.3,
    written_bytes_max=900 * MB,
    pipelined_s=0.3,
    consume_bytes=20 * MB,
    consume_passes=1,
    latency_messages=200,
    requests_s=0.3,
    connection_counts=(1, 10, 100, 1_000),
    start_ups=1,
    partition_counts=(1, 10, 100),
    partitions_s=0.3,
    idle_s=0.5,
    log_sizes_bytes=(10 * MB, 30 * MB),
    fetches=50,
    kills=1,
    restarts=1,
    rest_s=0.2,
)

# For brokers that are fifty times slower than usual, since their instructions are counted.
COUNTED: Final = replace(
    SMOKE,
    name="counted",
    produce_s=3.0,
    pipelined_s=3.0,
    consume_bytes=40 * MB,
    requests_s=3.0,
    connection_counts=(1, 10, 100),
)
