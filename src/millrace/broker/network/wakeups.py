"""Answers that a request makes possible on other connections than its own, and when they leave.

Fetches can be answered because records have arrived. The first one goes out before the producer's own answer:
its consumer is waiting for exactly this, and every system call in between would be part of the latency from
end to end. The others follow after it, so that a producer never waits for a crowd of consumers.

Produces can be answered because a follower has fetched their batches: often many at once, of one producer.
They are collected while the follower's request is handled, and leave together, with one system call for each
connection.

So the order in which answers leave, while the requests of one read are handled, is:

1. the first of those who were woken (`answer_first`), before the last request of the read is answered, or at
   the end of the read at the latest;
2. the answers to the read's own requests, in one piece;
3. what was completed on other connections meanwhile (`holds_back`), in one piece for each of them;
4. all others who were woken, in the loop's next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

_UNANSWERED: Final = "a waiting fetch could not be answered"
"""A bug in that answer. It belongs to another connection than the one being handled, whose requests must not
suffer."""


class Sender(Protocol):
    """A connection."""

    def send_answers(self) -> None:
        """Send the answers to requests that were handled now."""

    def send_collected(self) -> None:
        """Send the answers that others completed meanwhile."""


class Wakeups:
    """Who is to be answered because of the requests that are being handled."""

    __slots__ = ("_has_answered_first", "_held_back", "_is_handling", "_is_scheduled", "_loop", "_woken")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        self._woken: deque[Callable[[], None]] = deque()
        self._is_handling = False
        """Whether a connection handles what it has read, and calls `end_read` afterwards. Answers that others
        complete meanwhile shall leave together: see `holds_back`."""
        self._has_answered_first = False
        """Whether that was done for this read."""
        self._held_back: dict[Sender, bool] = {}

    def add(self, answer: Callable[[], None]) -> None:
        """Have `answer` called soon, at the latest in the loop's next round."""
        self._woken.append(answer)
        if not self._is_handling:
            self._answer_rest_soon()

    def begin_read(self) -> bool:
        """A connection begins to handle what it has read. Returns what `end_read` has to be given: whether
        another one does so already, and has let this one go on with its requests."""
        is_within_another = self._is_handling
        self._is_handling = True
        self._has_answered_first = False
        return is_within_another

    def end_read(self, is_within_another: bool) -> bool:
        """The requests of the read are handled. Whether there are answers for others than the connection that
        has read: then `let_leave` is to be called, else it sends its own."""
        self._is_handling = is_within_another
        return bool(self._woken or self._held_back)

    def let_leave(self, sender: Sender, is_within_another: bool) -> None:
        """Let the answers of the read leave, in the order that is stated above. `sender` has read."""
        if self._woken:
            if not self._has_answered_first:
                self.answer_first()
            self._answer_rest_soon()
        sender.send_answers()
        if self._held_back and not is_within_another:
            held_back, self._held_back = self._held_back, {}
            for other in held_back:
                other.send_collected()

    def answer_first(self) -> None:
        """Answer the first of those who were woken, before the one who woke it; once in a read."""
        was_handling = self._is_handling
        if not self._woken or (was_handling and self._has_answered_first):
            return
        # What it answers leaves now.
        self._is_handling = False
        try:
            self._woken.popleft()()
        except Exception:
            log.exception(_UNANSWERED)
        self._is_handling = was_handling
        self._has_answered_first = True

    def holds_back(self, sender: Sender) -> bool:
        """Whether answers that `sender` has completed shall wait, to leave together with others: then it is
        told when they may."""
        return self._is_handling and self._held_back.setdefault(sender, True)

    def _answer_rest_soon(self) -> None:
        if self._woken and not self._is_scheduled:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._is_scheduled = True
            self._loop.call_soon(self._answer_rest)

    def _answer_rest(self) -> None:
        self._is_scheduled = False
        # Only those that are here: an answer may make room for others, which get their own round.
        for _ in range(len(self._woken)):
            try:
                self._woken.popleft()()
            except Exception:
                log.exception(_UNANSWERED)
