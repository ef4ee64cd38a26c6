"""Measured figures of one broker for capacity plans: those we ship, or those of a run of `make bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from millrace.pipeline.errors import PipelineError

# Record sizes that the benchmark measures, with default batches of 16 KiB.
SIZES: Final = (100, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Broker CPU by record size (bytes -> s/GB), and what one partition took (bytes -> MB/s)."""

    source: str
    write_s_per_gb: Mapping[int, float]
    read_s_per_gb: Mapping[int, float]
    partition_mb_per_s: Mapping[int, float]

    def write_at(self, message_bytes: float) -> float:
        return _per_gb(self.write_s_per_gb, message_bytes)

    def read_at(self, message_bytes: float) -> float:
        return _per_gb(self.read_s_per_gb, message_bytes)

    def partition_bytes_per_s_at(self, message_bytes: float) -> float:
        inverse = {size: 1e3 / rate for size, rate in self.partition_mb_per_s.items()}
        return 1e9 / _per_gb(inverse, message_bytes)


# From benchmarks/results/2026-11-15-0c35870f41-partial.json; a test compares them.
SHIPPED_RESULT: Final = "2026-11-15-0c35870f41-partial.json"
SHIPPED: Final = Figures(
    source="recorded run of 2026-11-15, commit 0c35870f41, 2 cores of an AMD EPYC, acks=all, one replica",
    write_s_per_gb={100: 5.308, 1_000: 3.733},
    read_s_per_gb={100: 1.079, 1_000: 0.855},
    partition_mb_per_s={100: 152.2, 1_000: 263.8},
)


def load_figures(path: Path) -> Figures:
    """Figures of a result file of `make bench`, or of the newest complete one in a directory."""
    candidates = sorted(path.glob("*.json"), reverse=True) if path.is_dir() else [path]
    missing = ""
    for candidate in candidates:
        document = _read(candidate)
        values = {metric["key"]: metric.get("millrace") for metric in document.get("metrics", ())}
        missing = next((key for key in _keys() if not values.get(key)), "")
        if not missing:
            return _figures(candidate, document, values)
    if not candidates:
        raise PipelineError(f"{path}: no result of `make bench` (*.json) in there")
    raise PipelineError(
        f"{path}: no figure {missing!r}; a run of `make bench` with produce and consume has it"
    )


def _figures(path: Path, document: Mapping[str, Any], values: Mapping[str, float]) -> Figures:
    machine = document.get("machine", {})
    processor = machine.get("cpu", "an unknown processor")
    return Figures(
        source=f"{path.name}, {machine.get('cores', '?')} cores of {processor}",
        write_s_per_gb={size: values[f"librdkafka-produce.{size}.16384.cpu"] for size in SIZES},
        read_s_per_gb={size: values[f"librdkafka-consume.{size}.cpu"] for size in SIZES},
        partition_mb_per_s={size: values[f"librdkafka-produce.{size}.16384.rate"] for size in SIZES},
    )


def _keys() -> list[str]:
    return [
        key
        for size in SIZES
        for key in (
            f"librdkafka-produce.{size}.16384.cpu",
            f"librdkafka-produce.{size}.16384.rate",
            f"librdkafka-consume.{size}.cpu",
        )
    ]


def _read(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise PipelineError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PipelineError(f"{path}: not a result of `make bench`")
    return document


def _per_gb(by_size: Mapping[int, float], message_bytes: float) -> float:
    """Seconds for a GB at this size: each message has a fixed cost, and each of its bytes another."""
    small, large = min(by_size), max(by_size)
    costs = {size: by_size[size] * size for size in (small, large)}
    for_byte = (costs[large] - costs[small]) / (large - small)
    for_message = costs[small] - for_byte * small
    if for_message < 0 or for_byte <= 0:
        # Noise made large records look dearer by the byte: no line through these points makes sense.
        return max(by_size.values())
    return for_byte + for_message / message_bytes
