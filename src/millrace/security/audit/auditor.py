"""Takes what happens, leaves out what nobody wants to know, folds what repeats itself, and puts the rest into
the outboxes. It writes nothing itself, and never waits.

When an outbox cannot be emptied, a setting decides. Open: the broker goes on, and what finds no room is
counted. Closed: what must be told is refused while it cannot be told, which is logins and administrative
requests. Reads and writes of those who are inside go on either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.audit.events import (
    DEFAULT_KINDS,
    Activity,
    Actor,
    AdminAction,
    Decision,
    Event,
    Happening,
    Kind,
    Lifecycle,
    Login,
    Result,
    kind_of,
    shown,
)
from millrace.security.audit.folding import Folding, Repeated
from millrace.security.audit.outbox import Outbox
from millrace.security.principals import Identity

RESULTS_MAX: Final = 100
"""So many results of one administrative request are told by name."""


class AuditUnavailable(MillraceError):
    """Something is refused because it could not be told."""

    def __init__(self, outbox: str) -> None:
        super().__init__(f"the audit cannot be written ({outbox}), and audit.failure is closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPolicy:
    """What is told, and what happens if it cannot be."""

    kinds: frozenset[Kind] = frozenset(DEFAULT_KINDS)
    excluded_principals: frozenset[str] = frozenset()
    """Whose logins, reads, writes and looks are not told. What they administer, and what they are refused,
    is."""
    excluded_topics: frozenset[str] = frozenset()
    """Of these topics allowed reads, writes and looks are not told."""
    is_closed: bool = False


class Auditor:
    """The audit of one broker. Constructing it starts nothing."""

    def __init__(
        self,
        policy: AuditPolicy,
        outboxes: Iterable[Outbox],
        *,
        clock: Clock,
        loop_time: Callable[[], float],
        run_id: str,
    ) -> None:
        """`run_id` differs from that of every other run of every broker."""
        self.policy = policy
        self.outboxes = tuple(outboxes)
        self.told = 0
        self.folded = 0
        """Repeats that were counted and not told one by one."""
        self.refused = 0
        """Logins and administrative requests that were refused because they could not be told."""
        self._clock = clock
        self._loop_time = loop_time
        self._run_id = run_id
        self._folding = Folding()
        self._number = 0

    # What others tell.

    def decided(
        self,
        identity: Identity,
        host: str,
        request: str,
        operation: Operation,
        resource_type: ResourceType,
        resource: str,
        *,
        is_allowed: bool,
        rule: Callable[[], str],
    ) -> None:
        """Something was allowed or denied. `rule` is asked for if this is told by itself."""
        kind = kind_of(operation, is_allowed=is_allowed)
        policy = self.policy
        if kind not in policy.kinds:
            return
        principal = str(identity.principal)
        if kind in (Kind.DATA, Kind.DESCRIBE) and (
            principal in policy.excluded_principals
            or (resource_type is ResourceType.TOPIC and resource in policy.excluded_topics)
        ):
            return
        decision = Decision(
            Actor(shown(principal), host), request, operation, resource_type, shown(resource), is_allowed, ""
        )
        now_ms = self._clock.wall_ms()
        if self._folding.counts(decision.key, now_ms):
            self.folded += 1
            return
        self._tell_first(decision._replace(rule=rule()), now_ms)

    def logged_in(self, identity: Identity, *, host: str, listener: str, is_encrypted: bool) -> None:
        """Somebody has shown who they are, for the first time or again."""
        principal = str(identity.principal)
        if principal not in self.policy.excluded_principals:
            mechanism = identity.mechanism or "TLS"
            self._login(Login(Actor(shown(principal), host), mechanism, listener, True, is_encrypted))

    def login_failed(
        self, claimed: str, *, mechanism: str, host: str, listener: str, is_encrypted: bool, reason: str
    ) -> None:
        """Somebody could not. `claimed` is the user that they said to be, empty if they said nothing;
        `reason` holds no secret."""
        principal = f"User:{shown(claimed)}" if claimed else ""
        self._login(
            Login(Actor(principal, host), shown(mechanism), listener, False, is_encrypted, shown(reason))
        )

    def acted(
        self, identity: Identity, host: str, client_id: str, request: str, results: Iterable[Result]
    ) -> None:
        """An administrative request was answered."""
        if Kind.ADMIN not in self.policy.kinds:
            return
        told = tuple(
            result._replace(resource=shown(result.resource), detail=shown(result.detail))
            for result in results
        )
        actor = Actor(shown(str(identity.principal)), host, shown(client_id))
        left_out = max(len(told) - RESULTS_MAX, 0)
        self._tell(AdminAction(actor, request, told[:RESULTS_MAX], left_out), self._clock.wall_ms())

    def lives(self, activity: Activity, text: str) -> None:
        """The broker starts or stops."""
        if Kind.LIFECYCLE in self.policy.kinds:
            self._tell(Lifecycle(activity, text), self._clock.wall_ms())

    # What others ask.

    def refusal(self) -> AuditUnavailable | None:
        """Why logins and administrative requests are refused now; None if they are not. Who refuses one
        because of it says so by `count_refused`."""
        if not self.policy.is_closed:
            return None
        now = self._loop_time()
        for outbox in self.outboxes:
            if outbox.is_stuck(now):
                return AuditUnavailable(outbox.name)
        return None

    def count_refused(self) -> None:
        self.refused += 1

    # Time.

    def turn(self) -> None:
        """Tell what has been counted in windows that are over. To be called about once a second."""
        now_ms = self._clock.wall_ms()
        for repeated in self._folding.ended(now_ms):
            self._tell_repeated(repeated, now_ms)
        for outbox in self.outboxes:
            lost = outbox.take_lost()
            if lost:
                what = Lifecycle(Activity.EVENTS_LOST, f"{lost} events of the audit were lost: {outbox.name}")
                outbox.put(self._event(what, now_ms), self._loop_time())

    def finish(self) -> None:
        """Tell all that has been counted."""
        now_ms = self._clock.wall_ms()
        for repeated in self._folding.all():
            self._tell_repeated(repeated, now_ms)

    def _login(self, login: Login) -> None:
        if Kind.LOGIN not in self.policy.kinds:
            return
        now_ms = self._clock.wall_ms()
        if self._folding.counts(login.key, now_ms):
            self.folded += 1
        else:
            self._tell_first(login, now_ms)

    def _tell_first(self, what: Decision | Login, now_ms: int) -> None:
        before = self._folding.told(what, now_ms)
        if before is not None:
            self._tell_repeated(before, now_ms)
        self._tell(what, now_ms)

    def _tell_repeated(self, repeated: Repeated, now_ms: int) -> None:
        event = self._event(repeated.what, now_ms)
        self._put(replace(event, first_ms=repeated.first_ms, last_ms=repeated.last_ms, count=repeated.count))

    def _tell(self, what: Happening, now_ms: int) -> None:
        self._put(self._event(what, now_ms))

    def _event(self, what: Happening, now_ms: int) -> Event:
        self._number += 1
        return Event(f"{self._run_id}-{self._number}", now_ms, now_ms, 1, what)

    def _put(self, event: Event) -> None:
        self.told += 1
        now = self._loop_time()
        for outbox in self.outboxes:
            outbox.put(event, now)
