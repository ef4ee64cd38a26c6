"""`controller_mutation_rate`: how many partitions a client may create and delete.

Versions that know the refusal get it for each topic once the client is in debt. Older ones are granted all,
and wait afterwards. What was charged for a topic that could not be changed is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.broker.network.context import RequestContext

EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
EXCEEDED_MESSAGE: Final = "The throttling quota has been exceeded."
NO_VERSION: Final = 1 << 16
"""For APIs none of whose versions knows the refusal."""


class Mutations:
    """What one request changes, and for how long its client has to be silent afterwards."""

    __slots__ = ("_bucket", "_is_strict", "_throttle", "_throttle_ms")

    def __init__(self, ctx: RequestContext, *, refused_from: int) -> None:
        """`refused_from`: the version from which on clients know the refusal."""
        self._throttle = ctx.throttle
        self._bucket = None if ctx.throttle is None else ctx.throttle.mutations()
        self._is_strict = ctx.api_version >= refused_from
        self._throttle_ms = 0

    def allow(self, partitions: int) -> bool:
        """Charge the client with so many partitions; False if it has no more."""
        if self._bucket is None or self._throttle is None:
            return True
        now_ms = self._throttle.now_ms
        if not self._is_strict:
            self._throttle_ms = self._bucket.take_anyway(partitions, now_ms)
            return True
        throttle_ms = self._bucket.take(partitions, now_ms)
        self._throttle_ms = max(self._throttle_ms, throttle_ms)
        return throttle_ms == 0

    def give_back(self, partitions: int) -> None:
        """A topic of so many was not changed after all."""
        if self._bucket is not None and self._throttle is not None:
            left_ms = self._bucket.take_anyway(-partitions, self._throttle.now_ms)
            if not self._is_strict:
                self._throttle_ms = left_ms

    @property
    def throttle_ms(self) -> int:
        """What the answer has to tell."""
        return self._throttle_ms
