"""What clients of queues may not do."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class InvalidRecordState(MillraceError):
    """An acknowledgement of a record that its member does not hold, or does not hold any more."""


class InvalidShareRequest(MillraceError):
    """A request that no share partition could fulfil, whatever its state."""
