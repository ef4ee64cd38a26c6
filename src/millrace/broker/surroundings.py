"""What a broker takes from the machine that it runs on: time, chance, disk, store. The simulator brings its
own."""

from __future__ import annotations

import gc
import platform
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.broker.config.config import BrokerConfig
from millrace.core.clock import Clock, IdSource, SystemClock, SystemIdSource
from millrace.core.lanes import Lanes
from millrace.log.cleaning.compaction_runner import CompactionRunner, WorkerRunner
from millrace.log.disk.volume import DiskVolume, Volume
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.store import Store
from millrace.metadata.store.embedded import EmbeddedStore

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""A turn of the loop with a thousand requests makes thousands of objects that live until it ends: with
Python's own thresholds (700 first of all) the collector looks at them again and again, and finds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Handed to a broker when it is built; nothing in here starts by itself."""

    clock: Clock
    ids: IdSource
    chance: random.Random
    volume: Volume
    open_store: Callable[[BrokerConfig], Store]
    compaction: CompactionRunner
    ticks: Callable[[], float]
    """Measures requests, decides nothing."""
    open_file_count: Callable[[], int]
    settle: Callable[[], None]
    """Called once, when everything is built that lasts as long as the broker."""
    may_stay_awake: bool = True
    """Whether time passes while the loop has something to call; simulated time does not."""
    lanes: Lanes | None = None
    """Threads for what blocks, to be watched; None where the loop does all work by itself."""
    boot_id: str = ""
    """Another one after each start of the machine, which loses what was not flushed; empty if not known."""
    host_name: str = ""
    """Where a broker of a cluster stands if it is not told: replicas should not share a machine."""


def of_this_machine(config: BrokerConfig) -> Surroundings:
    # Measures requests and work, decides nothing.
    ticks = time.perf_counter  # noqa: TID251
    lanes = Lanes(config.log_dirs, ticks)
    volume = DiskVolume(open_files_max=_open_files_max(config), lanes=lanes)
    return Surroundings(
        clock=SystemClock(),
        ids=SystemIdSource(),
        chance=random.Random(),
        volume=volume,
        open_store=lambda config: open_store(config, lanes.metadata),
        compaction=WorkerRunner(),
        ticks=ticks,
        lanes=lanes,
        open_file_count=lambda: volume.pool.open_count,
        settle=_settle,
        boot_id=_boot_id(),
        host_name=platform.node(),
    )


def open_store(config: BrokerConfig, lane: Executor | None = None) -> Store:
    """The store that the configuration names; it is opened by whoever uses it."""
    if not config.is_clustered:
        return EmbeddedStore(config.metadata_store_path, lane=lane)
    try:
        # Only here: one broker alone needs neither the packages nor the memory that they take.
        from millrace.metadata.store.etcd import EtcdStore
        from millrace.metadata.store.etcd_calls import EtcdSettings
    except ImportError as error:
        raise InvalidConfig(
            "metadata.store", "etcd", f"it needs packages: pip install 'millrace[cluster]' ({error})"
        ) from error
    return EtcdStore(
        EtcdSettings(
            endpoints=config.texts("etcd.endpoints"),
            prefix=config.text("etcd.prefix"),
            username=config.optional_text("etcd.username"),
            password=config.optional_text("etcd.password"),
            certificate_authority=_file_of(config, "etcd.tls.ca.file"),
            certificate=_file_of(config, "etcd.tls.cert.file"),
            private_key=_file_of(config, "etcd.tls.key.file"),
            request_timeout_ms=config.integer("etcd.request.timeout.ms"),
        )
    )


def _file_of(config: BrokerConfig, name: str) -> bytes | None:
    path = config.optional_text(name)
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(name, path, f"cannot be read: {error.strerror}") from error


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _settle() -> None:
    # What was built to last is not looked at again by the collector: long pauses would show in the latency.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _open_files_max(config: BrokerConfig) -> int:
    """The bound on open log files: as set, else half of what the process may open; the rest is for
    connections."""
    limit = config.integer("log.open.files.max")
    return limit if limit > 0 else max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1)
