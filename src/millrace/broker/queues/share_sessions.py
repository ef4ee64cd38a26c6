"""Share sessions: which partitions a member fetches from this broker, so that it names them once and then
only what changes.

Rules without I/O. A member has one session with each broker. Nobody evicts it: it lives until the member
closes it, opens another, or loses the connection that it was opened on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.limits import REQUEST_PARTITIONS_MAX

if TYPE_CHECKING:
    from millrace.broker.queues.live_share import LiveShare

INITIAL_EPOCH: Final = 0
"""Asks for a new session."""
FINAL_EPOCH: Final = -1
"""Ends the session, and gives back what its member has."""
EPOCH_MAX: Final = 0x7FFF_FFFF

TARGETS_MAX: Final = 2 * REQUEST_PARTITIONS_MAX
"""What a session may grow to, request by request."""
LOWEST_FIRST_EVERY: Final = 8
"""Of so many turns, one begins with the partitions of the lowest priority: a flood of urgent records must not
stop all others for ever."""

TargetKey = tuple[TopicId, int]


class ShareSessionNotFound(MillraceError):
    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(f"member {member_id} of group {group_id} has no share session here")


class InvalidShareSessionEpoch(MillraceError):
    """The request is not the next one of its session."""

    def __init__(self, group_id: str, member_id: str, *, epoch: int, expected: int) -> None:
        super().__init__(
            f"the share session of member {member_id} of group {group_id} is at epoch {expected}, "
            f"the request says {epoch}"
        )


class ShareSessionLimitReached(MillraceError):
    def __init__(self, sessions_max: int) -> None:
        super().__init__(f"there are {sessions_max} share sessions, which is as many as there may be")


class AcknowledgedTooEarly(MillraceError):
    """The first fetch of a session has nothing to acknowledge."""

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(
            f"member {member_id} of group {group_id} opens a share session and acknowledges in one request"
        )


class TooManySharePartitions(MillraceError):
    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(
            f"member {member_id} of group {group_id} fetches more than {TARGETS_MAX} partitions here"
        )


class ShareTarget:
    """One partition of a session."""

    __slots__ = ("key", "share", "told_error")

    def __init__(self, key: TargetKey) -> None:
        self.key = key
        self.told_error = 0
        """The error that the member was last told of it."""
        self.share: LiveShare | None = None
        """Who served it last, which may be over by now."""


class Waiting(Protocol):
    """A fetch of the session that waits for records."""

    def hurry(self) -> None:
        """Answer now: its member asks for something else, whose answer has to come behind this one."""


class ShareSession:
    """What one member fetches from this broker, in the order in which it is served."""

    __slots__ = ("epoch", "group_id", "is_over", "member_id", "on_end", "targets", "waiting")

    def __init__(
        self, group_id: str, member_id: str, targets: Iterable[TargetKey], on_end: Callable[[], None]
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.targets: dict[TargetKey, ShareTarget] = {key: ShareTarget(key) for key in targets}
        self.epoch = 1
        self.on_end = on_end
        """Called once when it is over, whatever the reason."""
        self.is_over = False
        self.waiting: Waiting | None = None

    def change(self, asked: Sequence[TargetKey], forgotten: Iterable[TargetKey]) -> None:
        """Take over what a request adds and forgets. Raises TooManySharePartitions."""
        targets = self.targets
        if len(targets) + len(asked) > TARGETS_MAX:
            raise TooManySharePartitions(self.group_id, self.member_id)
        for key in asked:
            if key not in targets:
                targets[key] = ShareTarget(key)
        for key in forgotten:
            targets.pop(key, None)

    def served(self, target: ShareTarget) -> None:
        """Move a partition that has given records to the end, so that it does not starve the others."""
        if len(self.targets) > 1 and self.targets.pop(target.key, None) is not None:
            self.targets[target.key] = target

    def in_turn(self, epoch: int, priority_of: Callable[[TargetKey], int]) -> Sequence[ShareTarget]:
        """The partitions in the order in which the request with this epoch tries them: each begins with
        another one, and higher priorities come first, but for every eighth time."""
        found = list(self.targets.values())
        if len(found) > 1:
            if epoch >= 1 and (first := epoch % len(found)):
                found = found[first:] + found[:first]
            priorities = [priority_of(target.key) for target in found]
            if any(priorities):
                is_reversed = epoch % LOWEST_FIRST_EVERY != 0
                ranked = sorted(zip(priorities, found, strict=True), key=itemgetter(0), reverse=is_reversed)
                found = [target for _, target in ranked]
        return found


class ShareSessions:
    """The sessions of all members, of which there are at most `sessions_max`."""

    def __init__(self, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._members: dict[str, int] = {}
        self.lost_count = 0
        """How many ended because their connection did."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return sum(len(session.targets) for session in self._sessions.values())

    def begin(
        self, group_id: str, member_id: str, targets: Iterable[TargetKey], on_end: Callable[[], None]
    ) -> ShareSession:
        """A new session. It takes the place of the one that its member may have; what the member holds, it
        keeps. Raises ShareSessionLimitReached."""
        before = self._sessions.get((group_id, member_id))
        if before is not None:
            self.end(before)
        if len(self._sessions) >= self.sessions_max:
            raise ShareSessionLimitReached(self.sessions_max)
        session = ShareSession(group_id, member_id, targets, on_end)
        self._sessions[group_id, member_id] = session
        self._members[group_id] = self._members.get(group_id, 0) + 1
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession:
        """The session of a member. Raises ShareSessionNotFound."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFound(group_id, member_id)
        return session

    def resume(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session, for its next request, which names this epoch. Raises ShareSessionNotFound and
        InvalidShareSessionEpoch."""
        session = self.find(group_id, member_id)
        if session.epoch != epoch:
            raise InvalidShareSessionEpoch(group_id, member_id, epoch=epoch, expected=session.epoch)
        # From 1 to 2**31 - 1, and then from 1 again.
        session.epoch = epoch % EPOCH_MAX + 1
        return session

    def end(self, session: ShareSession) -> None:
        if session.is_over:
            return
        session.is_over = True
        del self._sessions[session.group_id, session.member_id]
        left = self._members[session.group_id] - 1
        if left:
            self._members[session.group_id] = left
        else:
            del self._members[session.group_id]
        session.on_end()

    def has_members(self, group_id: str) -> bool:
        """Whether anybody of the group has a session here."""
        return group_id in self._members
