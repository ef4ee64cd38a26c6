"""What the HTTP port shows: metrics, health, readiness, and how groups are doing."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from millrace.broker.watching.group_reports import GroupReports
from millrace.broker.watching.http import CollectionHandler, HttpHandler, HttpResponse
from millrace.broker.watching.metrics import CONTENT_TYPE, BrokerMetrics
from millrace.broker.watching.queue_figures import queue_document
from millrace.broker.watching.readiness import Readiness
from millrace.core.errors import MillraceError
from millrace.log.directories.log_directories import LogDirectories

_STARTING = HttpResponse(503, b'{"error":"the broker is starting"}\n')


class Pages:
    """The pages are there from the first moment: health and readiness tell how the start goes, the others
    answer after `open`."""

    def __init__(self, directories: LogDirectories, readiness: Readiness) -> None:
        self._directories = directories
        self._readiness = readiness
        self._metrics: BrokerMetrics | None = None
        self._reports: GroupReports | None = None

    def open(self, metrics: BrokerMetrics, reports: GroupReports) -> None:
        """Show all pages from now on, since the broker serves."""
        self._metrics = metrics
        self._reports = reports

    @property
    def paths(self) -> Mapping[str, HttpHandler]:
        return {
            "/metrics": self._show_metrics,
            "/healthz": self._show_health,
            "/readyz": self._show_readiness,
        }

    @property
    def public(self) -> Mapping[str, HttpHandler]:
        """For probes that show no token: whether, not why."""
        return {"/healthz": self._tell_health, "/readyz": self._tell_readiness}

    @property
    def collections(self) -> Mapping[str, CollectionHandler]:
        return {"/v1/groups": self._show_groups, "/v1/queues": self._show_queues}

    async def _show_metrics(self) -> HttpResponse:
        if self._metrics is None:
            return _STARTING
        return HttpResponse(200, await self._metrics.render(), CONTENT_TYPE)

    async def _show_groups(self, name: str | None, query: Mapping[str, str]) -> HttpResponse:
        """How the groups of this broker are doing: a page of all of them, or one with all its details."""
        reports = self._reports
        if reports is None:
            return _STARTING
        if name is None:
            page, has_more = await reports.page(query.get("after", ""))
            return _json(200, {"groups": [reports.summarise(each) for each in page], "has_more": has_more})
        report = await reports.of(name)
        if report is None:
            return _json(404, {"error": f"there is no group {name}"})
        if isinstance(report, MillraceError):
            return _json(503, {"error": str(report)})
        return _json(200, reports.describe(report))

    async def _show_queues(self, name: str | None, _query: Mapping[str, str]) -> HttpResponse:
        """How share groups are doing in the partitions that this broker leads: all of them, or one."""
        if self._metrics is None:
            return _STARTING
        found = [queue_document(each) for each in await self._metrics.queues(name)]
        if name is None:
            return _json(200, {"queues": found})
        if not found:
            return _json(404, {"error": f"no member of a share group {name} fetches here"})
        return _json(200, found[0])

    async def _show_health(self) -> HttpResponse:
        offline = self._directories.offline_reason
        state = {
            "status": "ok" if offline is None else "failed",
            "reason": offline,
            "offline_directories": self._directories.offline,
        }
        return _json(200 if offline is None else 503, state)

    async def _show_readiness(self) -> HttpResponse:
        progress = self._directories.progress
        offline = self._directories.offline_reason
        state = {
            "status": self._readiness.phase if offline is None else "failed",
            "reason": offline,
            "offline_directories": self._directories.offline,
            "logs_loaded": progress.logs_done,
            "logs_total": progress.logs_total,
            "bytes_checked": progress.bytes_done,
            "bytes_to_check": progress.bytes_total,
        }
        is_ready = self._readiness.is_ready and offline is None
        return _json(200 if is_ready else 503, state)

    async def _tell_health(self) -> HttpResponse:
        return _status_of(await self._show_health())

    async def _tell_readiness(self) -> HttpResponse:
        return _status_of(await self._show_readiness())


def _status_of(page: HttpResponse) -> HttpResponse:
    return _json(page.status, {"status": orjson.loads(page.body)["status"]})


def _json(status: int, body: object) -> HttpResponse:
    return HttpResponse(status, orjson.dumps(body) + b"\n")
