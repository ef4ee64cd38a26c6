"""What parts of a broker are built on, for the tests of those who build them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from millrace.broker.assembly.ground import Ground, Release
from millrace.broker.assembly.this_machine import of_this_machine
from millrace.broker.config.config import load
from millrace.broker.config.live import LiveConfig
from millrace.core.background import Background
from millrace.sim.store import MemoryStore

CLUSTERED = {"metadata.store": "etcd", "etcd.endpoints": "http://127.0.0.1:1", "node.id": "3"}


def ground_of(
    directory: Path, settings: Mapping[str, str] | None = None, *, background: Background | None = None
) -> Ground:
    """On a real disk, with a store in memory."""
    chosen = {
        "log.dirs": str(directory),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "metrics.listener": "127.0.0.1:0",
        **(settings or {}),
    }
    config = load(None, chosen, {})
    surroundings = replace(
        of_this_machine(config),
        chance=random.Random(1),
        open_store=lambda _: MemoryStore(),
        host_name="machine",
        boot_id="boot",
    )
    return Ground(
        config=LiveConfig(config),
        surroundings=surroundings,
        background=Background(random.Random(1)) if background is None else background,
        release=Release(),
    )
