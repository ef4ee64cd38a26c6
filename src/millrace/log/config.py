"""The settings that one partition's log needs, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Immutable, and shared by all partitions of a topic: an idle partition must cost little memory."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096

    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000

    cleanup_compact: bool = False
    cleanup_delete: bool = True
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX

    max_message_bytes: int = 1024 * 1024 + 12
    timestamp_log_append: bool = False
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3600 * 1000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    deep_validation: bool = False
    max_decompressed_message_bytes: int = 100 * 1024 * 1024

    delayed_delivery_enable: bool = False
    delayed_delivery_max_ms: int = 365 * 24 * 3600 * 1000
    dedup_window_ms: int = 0

    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    preallocate: bool = False
    producer_id_expiration_ms: int = 24 * 3600 * 1000
