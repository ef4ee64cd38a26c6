"""The surroundings of a broker that runs on a real machine: its clock, its disks, its store."""

from __future__ import annotations

import gc
import platform
import random
import resource
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.allocator import keep_freed_memory
from millrace.broker.config.config import BrokerConfig
from millrace.broker.surroundings import Surroundings
from millrace.core.clock import SystemClock, SystemIdSource
from millrace.core.lanes import Lanes
from millrace.log.cleaning.compaction_runner import WorkerRunner
from millrace.log.disk.volume import DiskVolume
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.store import Store
from millrace.metadata.store.embedded import EmbeddedStore

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""A turn of the loop with a thousand requests makes thousands of objects that live until it ends: with
Python's own thresholds (700 first of all) the collector looks at them again and again, and finds nothing."""


def of_this_machine(config: BrokerConfig) -> Surroundings:
    # These ticks measure requests and work; no decision depends on them.
    ticks = time.perf_counter  # noqa: TID251
    lanes = Lanes(config.log_dirs, ticks)
    volume = DiskVolume(open_files_max=_open_files_max(config), lanes=lanes)
    return Surroundings(
        clock=SystemClock(),
        ids=SystemIdSource(),
        chance=random.Random(),
        secret_chance=random.SystemRandom(),
        volume=volume,
        open_store=lambda config: open_store(config, lanes.metadata),
        compaction=WorkerRunner(),
        ticks=ticks,
        lanes=lanes,
        open_file_count=lambda: volume.pool.open_count,
        on_built=_settle_memory,
        boot_id=_boot_id(),
        host_name=platform.node(),
    )


def open_store(config: BrokerConfig, lane: Executor | None = None) -> Store:
    """The store that the configuration names; whoever uses it opens it."""
    if not config.is_clustered:
        return EmbeddedStore(config.metadata_store_path, lane=lane)
    try:
        # Imported only here: one broker alone needs neither the packages nor the memory that they take.
        from millrace.metadata.store.etcd import EtcdStore
    except ImportError as error:
        raise InvalidConfig(
            "metadata.store", "etcd", f"it needs packages: pip install 'millrace[cluster]' ({error})"
        ) from error
    return EtcdStore(part_settings.etcd_settings(config))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _settle_memory() -> None:
    keep_freed_memory()
    # The collector need not look again at what was built to last: its long pauses would show in the latency.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _open_files_max(config: BrokerConfig) -> int:
    """The bound that is set, else half of what the process may open; the rest is for connections."""
    half = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1)
    return part_settings.open_files_max(config) or half
