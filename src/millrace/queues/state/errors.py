"""Why the coordinator of share state refuses a command. Each class is one answer of the protocol."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class ShareStateError(MillraceError):
    """The root of what the coordinator of share state refuses."""


class StateNotInitialized(ShareStateError):
    """Nobody has said yet that this share partition is to have state."""

    def __init__(self, key: object, operation: str) -> None:
        super().__init__(f"{key}: {operation} before its state was initialized")


class InvalidShareState(ShareStateError):
    """A request that makes no sense, whatever the state is."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class LeaderEpochFenced(ShareStateError):
    """A newer leader of the partition has read the state, and only that one may go on."""

    def __init__(self, key: object, epoch: int, *, current: int) -> None:
        super().__init__(f"{key}: leader epoch {epoch} is fenced, the current one is {current}")


class StateEpochFenced(ShareStateError):
    """The state was initialized anew, and what was known of it before is of no use."""

    def __init__(self, key: object, epoch: int, *, current: int) -> None:
        super().__init__(f"{key}: state epoch {epoch} is fenced, the current one is {current}")


class UnknownSharePartition(ShareStateError):
    """There is no such partition, perhaps not any more."""

    def __init__(self, key: object) -> None:
        super().__init__(f"{key}: there is no such partition")
