"""Quotas as connections feel them: what each request is charged with, and the silence after too many.

Every answer of a connection passes `Connection.complete`, whichever way its request took, and there it is
charged. A client that is over its quota is answered at once and told for how long (`throttle_time_ms`); then
nothing more is read from it for that long, whether or not it keeps to it. What a client sends without an
answer (acks=0) is charged as well, and only the silence follows.

A connection looks up its limits with its first request, by its user and its client id, and again when one of
these changes, or any limit does. Clients that nothing limits have no `ClientThrottle`: their requests are
served as if there were no quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from millrace.broker.network.outgoing import Chunk
from millrace.broker.network.requests import Request, Slot
from millrace.broker.network.tenant_connections import TenantConnections
from millrace.core.override import override
from millrace.security.acls.roles import NO_ROLES, RoleTable
from millrace.security.quotas.keys import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from millrace.security.quotas.meters import Meter, Meters
from millrace.security.quotas.rates import KAFKAS_WINDOW, Window, percentage
from millrace.security.tenants import NO_TENANTS, TenantOverLimit, TenantTable
from millrace.wire.api_keys import ApiKey
from millrace.wire.framing import REQUEST_HEAD_SIZE
from millrace.wire.throttle_times import told, told_in_chunks

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.security.quotas.precedence import Bucket, QuotaTable
    from millrace.security.quotas.token_bucket import TokenBucket

T = TypeVar("T")

EXEMPT: Final = frozenset({int(ApiKey.WRITE_TXN_MARKERS)})
"""What brokers ask of each other counts for nobody's request time. Fetches of followers are served by a
connection that is exempt as a whole."""
LEASE_S_MAX: Final = 0.1
"""So much time is charged at once at most for requests of the commonest kinds."""
LEASED_PART: Final = 1 / 8
"""Of the time that those who share a limit have left, so much is leased to all connections together. The
nearer they are to the limit, the shorter are the leases, and at the limit each request is charged."""
LABELS_MAX: Final = 1_000
"""Clients whose throttling is told one by one; those behind them are told together."""
OTHERS: Final = ("", "", "")


class Whom(NamedTuple):
    """Whose throttling is counted."""

    quota: str
    user: str
    client_id: str


class Throttled:
    """How often and how long somebody was throttled."""

    __slots__ = ("count", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0


class ClientThrottle:
    """What one connection is charged with, and its silence."""

    __slots__ = (
        "_connection",
        "_fetch_meter",
        "_fetched",
        "_granted_s",
        "_header_bytes",
        "_mute",
        "_muted_until",
        "_owed_ms",
        "_owed_quota",
        "_produce_meter",
        "_produced",
        "_requests",
        "_throttling",
        "_working_since",
        "billed_until",
        "client_id",
        "fetch_bytes_max",
        "is_due",
        "is_timed",
        "left_s",
        "user",
    )

    def __init__(
        self,
        throttling: Throttling,
        connection: Connection,
        user: str,
        client_id: str,
        meters: tuple[tuple[Meter, ...], tuple[Meter, ...], tuple[Meter, ...]],
    ) -> None:
        """`meters`: of bytes produced, of bytes fetched, and of the time that requests take; each of the
        client and of its tenant, as far as there are any."""
        self._throttling = throttling
        self._connection = connection
        self.user = user
        self.client_id = client_id
        self._produced, self._fetched, self._requests = meters
        self._produce_meter = self._produced[0] if len(self._produced) == 1 else None
        """The only meter of bytes produced, where there is just one."""
        self._fetch_meter = self._fetched[0] if len(self._fetched) == 1 else None
        self.fetch_bytes_max: Final = min(
            (meter.largest_unthrottled for meter in self._fetched), default=None
        )
        """The most that a fetch may ask for; None if there is no bound."""
        # With the byte that says that no tagged fields follow, which all but old versions have.
        self._header_bytes = REQUEST_HEAD_SIZE + len(client_id.encode()) + 1
        self.is_timed = bool(self._requests)
        """Whether the time of each request counts: the connection adds it up."""
        self._owed_ms = 0
        self._owed_quota = ""
        self.is_due = False
        """Whether the next answer is charged with all that is owed: its lease of time has run out, or there
        is something else to tell."""
        self._granted_s = 0.0
        self.left_s = 0.0
        """What is left of the time that may be spent before the meters are looked at again."""
        self.billed_until = 0.0
        self._working_since: float | None = None
        """Since when a coroutine of the connection has the loop; None while none has."""
        self._mute: asyncio.TimerHandle | None = None
        self._muted_until = 0.0

    # Charging.

    def charge(self, slot: Slot, response: bytes | Sequence[Chunk]) -> bytes | Sequence[Chunk]:
        """Charge the client with a request that is being answered. Returns the answer, which tells for how
        long it is to be silent, and lets the silence begin."""
        # Nearly always this is all: there is room for what was produced, and the time is charged with that of
        # the next requests. As `Meter.has_room` does it, without the call.
        if not self.is_due and slot.is_produce and (meter := self._produce_meter) is not None:
            noted = meter.noted + (slot.stop - slot.body + self._header_bytes)  # type: ignore[attr-defined]
            now_ms = slot.started * 1000  # type: ignore[attr-defined]
            if noted <= meter.granted and now_ms < meter.sure_until_ms and not slot.is_over:
                meter.noted = noted
                meter.last_ms = now_ms
                return response
        return self._charge_all(slot, response)

    def _charge_all(self, slot: Slot, response: bytes | Sequence[Chunk]) -> bytes | Sequence[Chunk]:
        if not isinstance(slot, Request) or slot.is_over:
            return response
        route = slot.route
        if not self.is_due and route.is_common and not (route.is_produce and self._produced):
            return response
        throttle_ms, quota = self._owed_ms, self._owed_quota
        self._owed_ms = 0
        self.is_due = False
        if route.is_produce:
            now_ms = self.now_ms
            size_bytes = slot.stop - slot.body + self._header_bytes
            for meter in self._produced:
                ms = meter.record(size_bytes, now_ms)
                if ms > throttle_ms:
                    throttle_ms, quota = ms, PRODUCER_BYTE_RATE
        if self._requests:
            ms = self._charge_time(slot)
            if ms > throttle_ms:
                throttle_ms, quota = ms, REQUEST_PERCENTAGE
        if not throttle_ms:
            return response
        self.mute(throttle_ms, quota)
        if isinstance(response, bytes):
            return told(route.key, route.version, response, throttle_ms)
        return told_in_chunks(route.key, route.version, response, throttle_ms)

    def charge_unanswered(self, request: Request) -> None:
        """The same for a produce that nobody waits for: its client learns only by being muted."""
        throttle_ms = 0
        now_ms = self.now_ms
        size_bytes = request.stop - request.body + self._header_bytes
        for meter in self._produced:
            throttle_ms = max(throttle_ms, meter.record(size_bytes, now_ms))
        if throttle_ms:
            self.mute(throttle_ms, PRODUCER_BYTE_RATE)

    def holds_back(self, size_bytes: int) -> bool:
        """Whether an answer with so many bytes of records has to go without them. If not, they are counted.

        The first bytes after a silence of a whole window always leave, however many they are: a batch that
        is larger than the quota of a window would never reach its consumer else. The silence is longer."""
        ticks_ms = self._connection.ticks() * 1000
        if (meter := self._fetch_meter) is not None:
            noted = meter.noted + size_bytes
            if noted <= meter.granted and ticks_ms < meter.sure_until_ms:
                meter.noted = noted
                meter.last_ms = ticks_ms
                return False
        throttle_ms = 0
        # Its time is charged as well, at the end of each sample at least.
        self.is_due = self.is_due or self.is_timed
        now_ms = round(ticks_ms)
        for meter in self._fetched:
            throttle_ms = max(throttle_ms, meter.record(size_bytes, now_ms))
        if not throttle_ms:
            return False
        self.owe(throttle_ms, CONSUMER_BYTE_RATE)
        if all(meter.sum <= size_bytes for meter in self._fetched):
            return False
        for meter in self._fetched:
            meter.take_back(size_bytes, now_ms)
        return True

    def owe(self, throttle_ms: int, quota: str = CONTROLLER_MUTATION_RATE) -> None:
        """Have the next answer, which is the one that is being made, followed by this silence at least."""
        if throttle_ms > self._owed_ms:
            self._owed_ms = throttle_ms
            self._owed_quota = quota
            self.is_due = True

    def mutations(self) -> TokenBucket | None:
        """What changes of the cluster are taken from; None without a limit."""
        return self._throttling.mutations_of(self.user, self.client_id, self.now_ms)

    @property
    def now_ms(self) -> int:
        return round(self._connection.ticks() * 1000)

    # Time.

    def handled(self, since: float) -> None:
        """Something was done for the connection from `since` on, as far as that was not billed meanwhile."""
        now = self._connection.ticks()
        self.left_s -= now - max(since, self.billed_until)
        self.billed_until = now
        if self.left_s < 0:
            self.is_due = True

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        """The same work, whose time on the loop is counted. What it waits for costs nobody else anything."""
        return _Timed(work, self) if self._requests else work

    def step_begins(self) -> None:
        """A coroutine of the connection goes on."""
        self._working_since = self._connection.ticks()

    def step_ends(self) -> None:
        assert self._working_since is not None, "a step that ends has begun"
        self.handled(self._working_since)
        self._working_since = None

    def _charge_time(self, request: Request) -> int:
        if int(request.route.key) in EXEMPT:
            self.left_s = self._granted_s
            return 0
        # It is answered while it is handled, or in a step of its coroutine, or by somebody else.
        billed_s = 0.0
        if not request.has_place:
            billed_s = self._connection.ticks() - request.started
            self.left_s -= billed_s
        elif self._working_since is not None:
            self.handled(self._working_since)
        throttle_ms = self._settle()
        self.is_due = False
        self._granted_s = self._throttling.lease_s(min(meter.room for meter in self._requests) / 100)
        # The connection takes all of the request's time from the lease when it has been handled.
        self.left_s = self._granted_s + billed_s
        return throttle_ms

    def _settle(self) -> int:
        """Charge the time that was spent of the lease, which ends."""
        spent = percentage(self._granted_s - self.left_s)
        self._granted_s = self.left_s = 0.0
        now_ms = self.now_ms
        return max(meter.record(spent, now_ms) for meter in self._requests)

    def end(self) -> None:
        """Other limits count, or the connection has ended: nothing is owed, and it is read from again."""
        if self._requests:
            self._settle()
        self.unmute()

    # Silence.

    @property
    def is_muted(self) -> bool:
        return self._mute is not None

    def mute(self, throttle_ms: int, quota: str) -> None:
        """Read nothing from the connection for so long."""
        self._throttling.count(Whom(quota, self.user, self.client_id), throttle_ms)
        connection = self._connection
        until = connection.loop.time() + throttle_ms / 1000
        if self._mute is None:
            connection.hold()
            self._throttling.muted_count += 1
        elif until <= self._muted_until:
            return
        else:
            self._mute.cancel()
        self._muted_until = until
        self._mute = connection.loop.call_later(throttle_ms / 1000, self.unmute)

    def unmute(self) -> None:
        """Read on, if the connection was muted: its time is over, or other limits count, or it has ended."""
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
            self._throttling.muted_count -= 1
            self._connection.let_go()


class _Timed(Awaitable[T]):
    """Runs a coroutine's steps and counts the time of each."""

    __slots__ = ("_throttle", "_work")

    def __init__(self, work: Awaitable[T], throttle: ClientThrottle) -> None:
        self._work = work
        self._throttle = throttle

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        throttle = self._throttle
        raised: BaseException | None = None
        while True:
            throttle.step_begins()
            try:
                waits_for = next(steps) if raised is None else steps.throw(raised)
            except StopIteration as end:
                return cast("T", end.value)
            finally:
                throttle.step_ends()
            raised = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is for the work, whatever it is
                raised = error


class Throttling:
    """The limits of a broker's clients. Whoever follows the metadata replaces them."""

    def __init__(self, window: Window = KAFKAS_WINDOW, mutations_window: Window = KAFKAS_WINDOW) -> None:
        """`window`: over which rates are measured; `mutations_window`: of which changes can be saved up."""
        self.is_active = False
        """Whether anybody is limited at all."""
        self.muted_count = 0
        self.counts: dict[tuple[str, str, str], Throttled] = {}
        """How often and how long clients were throttled, by `Whom`."""
        self.tenants = TenantConnections()
        self._meters = Meters(window, mutations_window)
        self._roles: RoleTable = NO_ROLES
        self._known: dict[Connection, None] = {}
        """Connections that have looked up their limits."""

    @property
    def table(self) -> QuotaTable:
        """The limits that count."""
        return self._meters.table

    def replace(
        self,
        table: QuotaTable,
        *,
        brokers: int = 1,
        tenants: TenantTable = NO_TENANTS,
        roles: RoleTable = NO_ROLES,
    ) -> None:
        """Limit by these tables from now on; `brokers`: among how many each limit is divided. Everybody looks
        up their limits anew; who is muted is let go, and is muted again with the next request if it is still
        too much."""
        self._meters.replace(table, brokers=brokers)
        self.tenants.table = tenants
        self._roles = roles
        self.is_active = len(table) > 0 or len(tenants) > 0
        known, self._known = self._known, {}
        for connection in known:
            self._forget(connection)

    def knows(self, connection: Connection, client_id: bytes) -> bool:
        """A connection says that this is its client id, which is not the one that it was known by: see that
        its limits are those that count for it. False if it was ended, because its tenant may have no more."""
        name = connection.known_name
        self._forget(connection)
        connection.known_name = name
        self._known[connection] = None
        return not self.is_active or self._look_up(connection, client_id)

    def lease_s(self, room_s: float) -> float:
        """How much time a connection may spend before it is charged, if all who share its limit have so much
        left."""
        return max(0.0, min(LEASE_S_MAX, room_s * LEASED_PART / max(len(self._known), 1)))

    def connection_rate(self, address: str) -> float | None:
        """How many connections a second may come from there; None if any number."""
        return self.table.connection_rate(address)

    def _look_up(self, connection: Connection, client_id: bytes) -> bool:
        identity = connection.decisions.identity
        user = identity.principal.name
        name = client_id.decode(errors="replace")
        now_ms = round(connection.ticks() * 1000)
        tenant = None
        if len(self.tenants.table) and not connection.services.access.is_super(identity):
            # Super users, brokers among them, are nobody's: no tenant's limit keeps them out.
            principals = self._roles.principals(identity.principal, identity.groups)
            try:
                tenant = self.tenants.enter(connection, principals)
            except TenantOverLimit as error:
                connection.abort(str(error))
                return False
        meters = tuple(
            tuple(self._found(key, user, name, tenant, now_ms))
            for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
        )
        if any(meters) or self._meters.mutations_of(user, name, now_ms) is not None:
            connection.throttle = ClientThrottle(self, connection, user, name, cast("Any", meters))
        return True

    def leave(self, connection: Connection) -> None:
        """The connection has ended, or is a broker's, which nothing limits."""
        self._forget(connection)
        self._known.pop(connection, None)
        self.tenants.leave(connection)

    def meter(self, key: str, user: str, client_id: str, now_ms: int) -> Meter | None:
        """What this client is measured by; None if nothing limits it."""
        return self._meters.of_client(key, user, client_id, now_ms)

    def mutations_of(self, user: str, client_id: str, now_ms: int) -> TokenBucket | None:
        """What this client's changes of the cluster are taken from; None if nothing limits them."""
        return self._meters.mutations_of(user, client_id, now_ms)

    def count(self, whom: Whom, throttle_ms: int) -> None:
        counted = self.counts.get(whom)
        if counted is None:
            place = whom if len(self.counts) < LABELS_MAX else (whom.quota, *OTHERS[1:])
            counted = self.counts.setdefault(place, Throttled())
        counted.count += 1
        counted.sum_ms += throttle_ms

    def figures(self, now_ms: int) -> list[tuple[str, Bucket, float, float]]:
        """What is measured, who shares it, the rate of this moment and its bound, of some of the clients."""
        return list(islice(self._meters.figures(now_ms), LABELS_MAX))

    def _found(
        self, key: str, user: str, client_id: str, tenant: str | None, now_ms: int
    ) -> Generator[Meter, None, None]:
        meter = self._meters.of_client(key, user, client_id, now_ms)
        if meter is not None:
            yield meter
        if tenant is not None:
            meter = self._meters.of_tenant(key, tenant, now_ms)
            if meter is not None:
                yield meter

    def _forget(self, connection: Connection) -> None:
        connection.known_name = None
        throttle, connection.throttle = connection.throttle, None
        if throttle is not None:
            throttle.end()
