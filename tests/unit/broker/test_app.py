"""A whole broker on a real loop: its parts come up in order, hear of new settings, and go in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.app import Broker, Running
from millrace.broker.assembly.this_machine import of_this_machine
from millrace.broker.config.config import BrokerConfig, load
from millrace.broker.surroundings import Surroundings
from millrace.core.errors import MillraceError
from millrace.log.errors import DirectoryMismatch, LogDirectoryOffline
from millrace.metadata.commands import Alteration, AlterOperation, BrokerResource
from millrace.metadata.errors import InvalidConfig, StoreWentBack
from millrace.metadata.service import NewTopic
from millrace.sim.store import MemoryStore


def config_of(directory: Path, settings: Mapping[str, str] | None = None) -> BrokerConfig:
    chosen = {
        "log.dirs": str(directory / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "metrics.listener": "127.0.0.1:0",
        **(settings or {}),
    }
    return load(None, chosen, {})


def surroundings_of(config: BrokerConfig, store: MemoryStore | None = None) -> Surroundings:
    found = replace(of_this_machine(config), chance=random.Random(1), on_built=lambda: None)
    return found if store is None else replace(found, open_store=lambda _: store)


@asynccontextmanager
async def serving(
    config: BrokerConfig, surroundings: Surroundings | None = None
) -> AsyncIterator[tuple[Broker, Running]]:
    broker = Broker(config, surroundings or surroundings_of(config))
    stop = asyncio.Event()
    life = asyncio.get_running_loop().create_task(broker.serve(stop))
    try:
        async with asyncio.timeout(20):
            while broker.running is None and not life.done():
                await asyncio.sleep(0.005)
        if life.done():
            await life
        assert broker.running is not None
        yield broker, broker.running
    finally:
        stop.set()
        with suppress(MillraceError):
            await life


async def page(told: pytest.LogCaptureFixture, path: str) -> bytes:
    """As a machine sees it that knows the port from the log."""
    url: str = next(record.__dict__["url"] for record in told.records if "url" in record.__dict__)
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def create(running: Running, name: str) -> None:
    (outcome,) = await running.cluster.metadata.create_topics(
        [NewTopic(name=name, partition_count=2, configs={})]
    )
    assert not isinstance(outcome, MillraceError), outcome


def test_a_broker_serves_stops_in_order_and_finds_everything_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millrace")

    async def main() -> None:
        config = config_of(tmp_path)
        async with serving(config) as (broker, running):
            assert broker.readiness.is_ready
            await create(running, "orders")
            # A command returns when this broker has made it so.
            assert len(broker.partitions) == 2
            assert (await page(caplog, "/readyz")).startswith(b"HTTP/1.1 200")
            assert b"\nmillrace_partitions 2.0\n" in await page(caplog, "/metrics")
        assert broker.readiness.phase == "stopping"
        assert len(broker.background) == 0
        async with serving(config) as (broker, _):
            assert len(broker.partitions) == 2
            assert broker.directories.progress.is_clean

    asyncio.run(main())


def test_settings_that_change_reach_every_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(config_of(tmp_path)) as (_, running):
            services = running.server.services
            changes = {
                "max.connections": "17",
                "log.cleaner.backoff.ms": "123",
                "fetch.pacing.enable": "false",
            }
            alterations = [Alteration(name, AlterOperation.SET, value) for name, value in changes.items()]
            (error,) = await running.cluster.metadata.alter_configs([(BrokerResource(None), alterations)])
            assert error is None, error
            await running.cluster.reconciler.wait_until_applied(running.cluster.metadata.image.revision)
            assert running.server.limits.connections.connections_max == 17
            assert not services.settings.paces_fetches
            assert services.config.integer("log.cleaner.backoff.ms") == 123

    asyncio.run(main())


def test_the_directory_says_who_the_broker_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(config_of(tmp_path, {"node.id": "7"})):
            pass
        async with serving(config_of(tmp_path)) as (_, running):
            assert list(running.cluster.metadata.image.brokers) == [7]
        with pytest.raises(DirectoryMismatch):
            async with serving(config_of(tmp_path, {"node.id": "8"})):
                pass

    asyncio.run(main())


def test_no_new_store_takes_the_place_of_one_that_is_out_of_reach(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    settings = {"log.dirs": f"{tmp_path}/data,{lost}", "metadata.store.path": f"{lost}/metadata.sqlite"}

    async def main() -> None:
        async with serving(config_of(tmp_path, settings)):
            pass
        lost.rename(tmp_path / "unmounted")
        lost.mkdir()
        with pytest.raises(LogDirectoryOffline, match="the metadata store is in it"):
            async with serving(config_of(tmp_path, settings)):
                pass

    asyncio.run(main())


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        taken = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        for name, address in (
            ("listeners", f"PLAINTEXT://127.0.0.1:{port}"),
            ("metrics.listener", f"127.0.0.1:{port}"),
        ):
            with pytest.raises(InvalidConfig, match=name):
                async with serving(config_of(tmp_path / name, {name: address})):
                    pass
        taken.close()

    asyncio.run(main())


def test_a_broker_that_cannot_follow_the_metadata_stops_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemoryStore()
        early = await store.load()
        config = config_of(tmp_path)
        broker = Broker(config, surroundings_of(config, store))
        life = asyncio.get_running_loop().create_task(broker.serve(asyncio.Event()))
        async with asyncio.timeout(20):
            while broker.running is None:
                await asyncio.sleep(0.005)
            store.restore(early)
            with pytest.raises(StoreWentBack):
                await life
        assert broker.readiness.phase == "stopping"

    asyncio.run(main())


def test_a_broker_of_a_cluster_needs_a_number(tmp_path: Path) -> None:
    async def main() -> None:
        config = config_of(tmp_path, {"metadata.store": "etcd", "etcd.endpoints": "http://127.0.0.1:1"})
        with pytest.raises(InvalidConfig, match=r"node\.id"):
            async with serving(config, surroundings_of(config, MemoryStore())):
                pass

    asyncio.run(main())
