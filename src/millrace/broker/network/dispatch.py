"""From an api key and version to what serves it. The one list of APIs is `handlers.APIS`; all else is
derived."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from millrace.broker.network.checks import Checks
from millrace.broker.network.requests import Request
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey

LATENCY_BOUNDS_S: Final = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class ApiStats:
    """What one API has done so far; plain numbers, because every request adds to them."""

    __slots__ = ("buckets", "count", "errors", "sum_s")

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.errors: dict[int, int] = {}

    def record(self, duration_s: float) -> None:
        self.count += 1
        self.sum_s += duration_s
        self.buckets[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1

    def count_error(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


@dataclass(frozen=True, slots=True)
class Api:
    """One API as this broker serves it.

    `handle` takes a RequestContext and the decoded request (of the newest class, whatever the version) and
    returns the response, or is a coroutine function that does. A `direct` handler takes a `Request`, decodes
    and answers by itself.
    """

    key: ApiKey
    versions: tuple[int, int]
    handle: Callable[..., Any]
    checks: Checks
    """What those who ask must be allowed, for docs and tests; its handler enforces it."""
    direct: bool = False
    advertised_from: int | None = None
    """The lowest version that ApiVersions names, where clients need to see one that is refused."""
    quick: Callable[..., bool] | None = None
    """Tried before `handle`, with a `Request`: serves requests of the commonest kind in fewer steps, or
    answers False and has done nothing."""
    request_type: type[Request] = Request
    """What a direct or quick handler is given, with room for what its answer needs."""
    answer_unserved: Callable[[tuple[Api, ...]], bytes] | None = None
    """Makes the body that a request of a version gets that is not served, from the list of all APIs. Without
    it such a request ends the connection."""

    @property
    def name(self) -> str:
        """The API as Kafka writes it: `CreateTopics`."""
        return schema.api_name(self.key)


class Route:
    """One (API, version), ready to serve."""

    __slots__ = (
        "decode",
        "direct",
        "encode",
        "flexible_request",
        "flexible_response",
        "handle",
        "is_common",
        "is_produce",
        "key",
        "name",
        "quick",
        "request_type",
        "stats",
        "version",
    )

    def __init__(self, api: Api, version: int, stats: ApiStats) -> None:
        self.key = api.key
        self.is_produce = api.key == ApiKey.PRODUCE
        self.is_common = api.direct or api.quick is not None
        """Whether clients ask for it again and again: produce, fetch, commit, heartbeat."""
        self.name = api.name
        self.version = version
        self.stats = stats
        self.handle = api.handle
        self.direct = api.direct
        self.quick = api.quick
        self.request_type = api.request_type
        self.flexible_request = schema.request_header_version(api.key, version) >= 2
        self.flexible_response = schema.response_header_version(api.key, version) >= 1
        if not api.direct:
            self.decode = schema.request_decoder(api.key, version)
            self.encode = schema.response_encoder(api.key, version)


class Dispatcher:
    """Routes, made on first use, and the statistics of each API."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self._apis = {int(api.key): api for api in apis}
        self.routes: dict[int, Route] = {}
        """By `route_number`: the connection looks here first."""
        self.stats = {int(api.key): ApiStats() for api in self._apis.values()}

    @property
    def apis(self) -> tuple[Api, ...]:
        return tuple(self._apis.values())

    def find(self, key: int, version: int) -> Route | None:
        """The route of a served (API, version), or None."""
        api = self._apis.get(key)
        if api is None or not api.versions[0] <= version <= api.versions[1]:
            return None
        number = route_number(key, version)
        route = self.routes.get(number)
        if route is None:
            route = self.routes[number] = Route(api, version, self.stats[key])
        return route

    def answers_any_version(self, key: int) -> bool:
        api = self._apis.get(key)
        return api is not None and api.answer_unserved is not None

    def answer_unserved(self, key: int) -> bytes | None:
        """The body for a version that is not served; None for an API that has no such answer."""
        api = self._apis.get(key)
        return None if api is None or api.answer_unserved is None else api.answer_unserved(self.apis)

    def serves(self, key: int, version: int) -> bool:
        api = self._apis.get(key)
        return api is not None and api.versions[0] <= version <= api.versions[1]


def route_number(key: int, version: int) -> int:
    return key << 16 | version & 0xFFFF
