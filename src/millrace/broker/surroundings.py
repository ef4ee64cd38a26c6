"""What a broker takes from the machine that it runs on: time, chance, disk, store. The simulator brings its
own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from millrace.broker.config.config import BrokerConfig
from millrace.core.clock import Clock, IdSource
from millrace.core.lanes import Lanes
from millrace.log.cleaning.compaction_runner import CompactionRunner
from millrace.log.disk.volume import Volume
from millrace.metadata.store import Store


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
    """Measures requests; no decision depends on it."""
    open_file_count: Callable[[], int]
    on_built: Callable[[], None]
    """Called once, when everything is built that lasts as long as the broker."""
    may_stay_awake: bool = True
    """Whether time passes while the loop has something to call; simulated time does not."""
    lanes: Lanes | None = None
    """Threads for what blocks, to be watched; None where the loop does all work by itself."""
    secret_chance: random.Random | None = None
    """For what nobody may guess, such as nonces; None where `chance` has to do, in simulations."""
    boot_id: str = ""
    """Differs after each start of the machine, which loses what was not flushed; empty if not known."""
    host_name: str = ""
    """The rack of a broker in a cluster that is told none: replicas should not share a machine."""
