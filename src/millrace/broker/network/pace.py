"""How fast a consumer that catches up is answered, so that it does not stop asking.

librdkafka, and with it most clients that are not in Java, asks for nothing during a whole second
(`fetch.queue.backoff.ms`) when it holds more than its application has taken: 64 MB, or 100,000 messages. An
application that takes 500 MB/s has read that after an eighth of the second and idles for the rest. So the
faster a broker fills such a client, the slower it gets: 110 MB/s in this example, with every broker.

The remedy is to answer no faster than the application reads. A pause of that length after a lot was sent
quickly tells that it was too fast, and how fast would have been right: all but what the client holds was
taken in the meantime. From then on answers are held back for the milliseconds that keep them below that. Now
and then the pace is raised a little, since applications and their load change; each time that this was too
much it is tried half as often.

The broker never holds back a client that does not pause, nor one that has read all but a little, and holds
no answer for longer than `HOLD_MAX_S`. Some clients are silent for a second for another reason: their
application may take that long for each batch, however slowly it is answered, and then the broker only adds
delay. So a pause of a paced client counts against the pace if the client has got no more than before there
was one. After three such pauses in a row the broker leaves the client alone for a minute, the next time for
two, and so on.
"""

from __future__ import annotations

from typing import Final

LARGE_ANSWER_BYTES: Final = 256 * 1024
"""Smaller answers do not count: a consumer that is sent less is at the end of its partitions, or slow
anyway."""
PAUSE_MIN_S: Final = 0.8
PAUSE_MAX_S: Final = 1.3
"""The client's second, with what it takes to notice that it is over."""
BREAK_S: Final = 0.3
"""Without a request for so long, what was sent before is no longer waiting to be read."""
BURST_BYTES: Final = 8_000_000
"""After a break so much leaves without delay: the application should have something to do at once."""
QUEUE_BYTES: Final = 66_000_000
"""What such a client holds when it stops asking, unless its messages are small."""
FAST_BYTES_PER_S: Final = 32_000_000
"""Slower than that, it was the network or the application that took its time."""
CAUTION: Final = 0.9
RAISE: Final = 1.05
RAISE_FIRST_S: Final = 4.0
RAISE_MAX_S: Final = 64.0
RAISE_SOON_S: Final = 1.0
RAISES_MAX: Final = 3
"""After so many raises the pace is back at what it was before `CAUTION` lowered it."""
HOLD_MAX_S: Final = 0.5
"""As long as most clients let a broker wait for records. A client that reads so slowly that this is not
enough has something to read during its pause."""
FAILURES_MAX: Final = 3
"""Pauses that a pace did not shorten, until it is given up."""
LEAVE_ALONE_S: Final = 60.0
FORGET_S: Final = 60.0
"""What was learned before so long a break says nothing of the present."""


class Pace:
    """How fast one consumer may be answered, as learned from its pauses. Times are the broker's ticks."""

    __slots__ = (
        "_bytes",
        "_due",
        "_failures",
        "_first",
        "_last",
        "_leave_alone_s",
        "_leave_alone_until",
        "_patience_s",
        "_raise_at",
        "_raises",
        "_unpaced",
        "rate",
    )

    def __init__(self, now: float) -> None:
        self.rate = 0.0
        """Bytes a second; 0 while there is no limit."""
        self._first = self._last = now
        self._bytes = 0
        self._due = 0.0
        self._raise_at = 0.0
        self._raises = 0
        self._patience_s = RAISE_FIRST_S
        self._unpaced = 0.0
        """Bytes a second that it got before there was a pace, its pause included."""
        self._failures = 0
        self._leave_alone_s = LEAVE_ALONE_S
        self._leave_alone_until = now

    def hold_s(self, now: float) -> float:
        """For how long the request that has just come is not to be answered."""
        gap = now - self._last
        if gap > BREAK_S:
            if PAUSE_MIN_S <= gap <= PAUSE_MAX_S:
                self._paused(gap, now)
            elif gap > FORGET_S:
                self.rate = 0.0
            self._bytes = 0
            self._first = now
        return self._due - now if self.rate else 0.0

    def caught_up(self, now: float) -> None:
        """An answer leaves after which there is little to read. What comes next is as fast as its producers,
        and a pause after it is no sign of haste."""
        self._first = self._last = now
        self._bytes = 0

    def sent(self, size_bytes: int, now: float) -> None:
        """An answer leaves, and there is more to read."""
        self._last = now
        self._bytes += size_bytes
        if not self.rate:
            return
        if now >= self._raise_at:
            self._raise(now)
        due = max(self._due, now - BURST_BYTES / self.rate) + size_bytes / self.rate
        self._due = min(due, now + HOLD_MAX_S)

    def _raise(self, now: float) -> None:
        self.rate *= RAISE
        self._raises += 1
        if self._raises > RAISES_MAX:
            # It would have been too much by now if nothing had changed: the application reads faster.
            self._patience_s = RAISE_SOON_S
        self._raise_at = now + self._patience_s

    def _paused(self, gap: float, now: float) -> None:
        """The client has asked for nothing during about a second."""
        busy_s = max(self._last - self._first, 0.001)
        if (
            self._bytes < BURST_BYTES
            or self._bytes < FAST_BYTES_PER_S * busy_s
            or now < self._leave_alone_until
        ):
            return
        # It has read all in the end, and all but what it could hold before it stopped.
        slowest = self._bytes / (busy_s + gap)
        taken = max(slowest, (self._bytes - QUEUE_BYTES) / busy_s)
        if self.rate:
            self._failures = 0 if slowest > self._unpaced else self._failures + 1
            if self._failures == FAILURES_MAX:
                self._give_up(now)
                return
            # Having been raised, it was right for most of the time, and is too high by a little.
            taken = self.rate if self._raises else min(taken, self.rate)
            self._patience_s = min(max(self._patience_s * 2, RAISE_FIRST_S), RAISE_MAX_S)
        else:
            self._unpaced = slowest
        self._raises = 0
        self.rate = taken * CAUTION
        self._raise_at = now + self._patience_s

    def _give_up(self, now: float) -> None:
        """It pauses for a reason of its own."""
        self.rate = 0.0
        self._failures = 0
        self._leave_alone_until = now + self._leave_alone_s
        self._leave_alone_s *= 2
