"""The pages of the HTTP port: while the broker starts, when it serves, and when its disks fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, cast

import orjson
import pytest

from millrace.broker.watching.group_reports import GroupReport, GroupReports
from millrace.broker.watching.http import CollectionHandler, HttpResponse
from millrace.broker.watching.metrics import CONTENT_TYPE, BrokerMetrics
from millrace.broker.watching.pages import Pages
from millrace.broker.watching.queue_figures import QueueFigures
from millrace.broker.watching.readiness import Readiness
from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.errors import MillraceError
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks


class FakeMetrics:
    async def render(self) -> bytes:
        return b"millrace_topics 1\n"

    async def queues(self, group_id: str | None = None) -> list[QueueFigures]:
        return [] if group_id == "nobody" else [QueueFigures("workers", {"acquired": 3}, [])]


class FakeReports:
    """One group, and one that this broker does not coordinate."""

    async def page(self, after: str) -> tuple[list[str], bool]:
        return (["readers"] if after < "readers" else []), False

    async def of(self, name: str) -> str | MillraceError | None:
        if name == "elsewhere":
            return CoordinatorNotAvailable("not here")
        return name if name == "readers" else None

    def summarise(self, report: GroupReport) -> dict[str, Any]:
        return {"group": report}

    def describe(self, report: GroupReport) -> dict[str, Any]:
        return {"group": report, "members": []}


class World:
    def __init__(self) -> None:
        self.disks = Disks(SimVolume(random.Random(1)))
        self.readiness = Readiness()
        self.pages = Pages(self.disks.directories, self.readiness)

    def open(self) -> None:
        self.readiness.phase = "ready"
        self.pages.open(cast("BrokerMetrics", FakeMetrics()), cast("GroupReports", FakeReports()))

    def fail(self, *paths: str) -> None:
        for path in paths:
            self.disks.directories.at(path).fence("the disk is gone")

    def get(self, path: str) -> tuple[int, Any]:
        response: HttpResponse = asyncio.run(_awaited(self.pages.paths[path]()))
        return response.status, orjson.loads(response.body)

    def groups(self, name: str | None = None, **query: str) -> tuple[int, Any]:
        response = asyncio.run(_awaited(self.pages.collections["/v1/groups"](name, query)))
        return response.status, orjson.loads(response.body)


async def _awaited(work: Any) -> HttpResponse:
    response = await work
    assert isinstance(response, HttpResponse)
    return response


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.disks.dispose()


def test_a_broker_that_starts_is_healthy_and_not_ready(world: World) -> None:
    assert world.get("/healthz") == (200, {"status": "ok", "reason": None, "offline_directories": {}})
    status, state = world.get("/readyz")
    assert (status, state["status"], state["logs_total"]) == (503, "starting", 0)
    assert world.get("/metrics")[0] == 503
    assert world.groups()[0] == 503


def test_a_broker_that_serves_shows_all_pages(world: World) -> None:
    world.open()
    assert world.get("/readyz")[0] == 200
    response = asyncio.run(_awaited(world.pages.paths["/metrics"]()))
    assert (response.status, response.content_type) == (200, CONTENT_TYPE)


def test_one_disk_less_is_told_and_no_reason_to_replace_the_broker(world: World) -> None:
    world.open()
    world.fail("/a")
    assert world.get("/healthz") == (
        200,
        {"status": "ok", "reason": None, "offline_directories": {"/a": "the disk is gone"}},
    )
    assert world.get("/readyz")[0] == 200


def test_without_disks_a_broker_is_neither_healthy_nor_ready(world: World) -> None:
    world.open()
    world.fail("/a", "/b")
    for path in ("/healthz", "/readyz"):
        status, state = world.get(path)
        assert (status, state["status"], state["reason"]) == (503, "failed", "the disk is gone")


def test_those_without_the_token_learn_whether_and_not_why(world: World) -> None:
    world.open()
    for path in ("/healthz", "/readyz"):
        assert orjson.loads(asyncio.run(_awaited(world.pages.public[path]())).body).keys() == {"status"}
    world.fail("/a", "/b")
    for path in ("/healthz", "/readyz"):
        response = asyncio.run(_awaited(world.pages.public[path]()))
        assert (response.status, orjson.loads(response.body)) == (503, {"status": "failed"})
    assert set(world.pages.public) < set(world.pages.paths)


def test_groups_are_listed_described_or_not_there(world: World) -> None:
    world.open()
    assert world.groups() == (200, {"groups": [{"group": "readers"}], "has_more": False})
    assert world.groups(after="z") == (200, {"groups": [], "has_more": False})
    assert world.groups("readers") == (200, {"group": "readers", "members": []})
    assert world.groups("nobody") == (404, {"error": "there is no group nobody"})
    assert world.groups("elsewhere") == (503, {"error": "not here"})


def test_queues_are_shown_all_and_one_by_one(world: World) -> None:
    show = world.pages.collections["/v1/queues"]
    assert asyncio.run(_answer(show, None)).status == 503
    world.open()
    queue = {"group": "workers", "counts": {"acquired": 3}, "partitions": []}
    assert orjson.loads(asyncio.run(_answer(show, None)).body) == {"queues": [queue]}
    assert orjson.loads(asyncio.run(_answer(show, "workers")).body) == queue
    assert asyncio.run(_answer(show, "nobody")).status == 404


async def _answer(show: CollectionHandler, name: str | None) -> HttpResponse:
    return await show(name, {})
