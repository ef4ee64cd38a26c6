"""Listeners, services and upkeep: built with what is set, and told what is set anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from millrace.broker.assembly.coordinators import Coordinators
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.serving import (
    build_server,
    build_services,
    listen,
    start_token_sweep,
    start_upkeep,
)
from millrace.broker.assembly.storage import build_storage, open_directories
from millrace.broker.config.config import load
from millrace.broker.handlers.services import Services
from millrace.broker.network.server import Server
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.broker.replication.membership import Place
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.image import EMPTY
from millrace.metadata.service import Metadata
from tests.harness.background import background
from tests.unit.broker.assembly.grounds import ground_of


def services_of(ground: Ground) -> Services:
    nobody = Mock()
    metadata = cast("Metadata", SimpleNamespace(image=EMPTY, subscribe=lambda _callback: None))
    coordinators = Coordinators(*[nobody] * 9)
    return build_services(ground, metadata, build_storage(ground), coordinators, None)


def server_of(ground: Ground, before_requests: Any = None) -> Server:
    place = cast("Place", SimpleNamespace(before_requests=before_requests))
    return build_server(ground, services_of(ground), place)


def test_a_broker_alone_has_no_followers_and_nobody_to_ask(tmp_path: Path) -> None:
    services = services_of(ground_of(tmp_path))
    assert (services.replica_sessions, services.remote_transactions, services.failovers) == (None, None, None)


def test_services_and_limits_follow_the_configuration(tmp_path: Path) -> None:
    ground = ground_of(tmp_path)
    server = server_of(ground)
    services = server.services
    config = load(
        None,
        {"max.connections": "3", "socket.idle.poll.us": "70", "auto.create.topics.enable": "false"},
        {},
    )
    ground.config.replace(config)
    assert server.limits.connections.connections_max == 3
    assert services.config is config
    assert not services.settings.creates_topics
    assert services.lookout.patience_s == pytest.approx(0.000_07)


def test_where_time_stands_still_nobody_looks_out_for_requests(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, {"socket.idle.poll.us": "70"})
    still = replace(ground, surroundings=replace(ground.surroundings, may_stay_awake=False))
    assert services_of(ground).lookout.patience_s > 0
    assert services_of(still).lookout.patience_s == 0


def test_a_broker_of_a_cluster_looks_at_its_lease_before_requests(tmp_path: Path) -> None:
    def check() -> None:
        """Look at the lease."""

    assert server_of(ground_of(tmp_path), check).before_requests is check
    assert server_of(ground_of(tmp_path)).before_requests is None


def test_every_listener_gets_its_port_or_the_start_ends(tmp_path: Path) -> None:
    names = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT"}
    settings = {**names, "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0"}

    async def main() -> None:
        ground = ground_of(tmp_path, settings)
        server = server_of(ground)
        ports = await listen(ground, server, {}, {})
        assert list(ports) == ["PLAINTEXT", "INTERNAL"]
        taken = ground_of(tmp_path, {**settings, "listeners": f"INTERNAL://127.0.0.1:{ports['INTERNAL']}"})
        with pytest.raises(InvalidConfig, match="listeners"):
            await listen(taken, server_of(taken), {}, {})
        await server.stop(0)

    asyncio.run(main())


def test_tokens_are_swept_up_where_there_can_be_any(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            before = len(tasks)
            without = ground_of(tmp_path, background=tasks)
            start_token_sweep(without, services_of(without))
            assert len(tasks) == before
            with_key = ground_of(tmp_path, {"delegation.token.secret.key": "key"}, background=tasks)
            start_token_sweep(with_key, services_of(with_key))
            assert len(tasks) == before + 1

    asyncio.run(main())


def test_upkeep_runs_in_the_background_and_follows_the_configuration(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, background=tasks)
            storage = build_storage(ground)
            await open_directories(ground, storage.directories)
            storage.directories.ensure_identity(node_id=1, cluster_id="c")
            disks = cast("FailedDisks", SimpleNamespace(run=asyncio.Event().wait))
            upkeep = start_upkeep(ground, storage, disks)
            assert len(tasks) >= 5
            ground.config.replace(
                load(None, {"log.cleaner.backoff.ms": "77", "log.scrub.interval.ms": "88000"}, {})
            )
            assert upkeep.cleaner.config.backoff_ms == 77
            assert upkeep.scrubber.config.interval_ms == 88_000
            await storage.directories.close()

    asyncio.run(main())
