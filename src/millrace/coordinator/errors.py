"""Why a coordinator did not carry out a command; all of it can be tried again, here or elsewhere."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class NotCoordinator(MillraceError):
    """Another broker coordinates this key now; the client has to look for it."""

    def __init__(self, partition: object) -> None:
        super().__init__(f"this broker does not lead {partition}")


class CoordinatorLoading(MillraceError):
    """This broker coordinates the key, and still reads its partition: try again in a moment."""

    def __init__(self, partition: object) -> None:
        super().__init__(f"{partition} is being loaded")


class CoordinatorNotAvailable(MillraceError):
    """Nobody can coordinate the key at present: its topic is missing, or too few replicas are in sync."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class RecordsTooLarge(MillraceError):
    """One decision's records do not fit into a batch of the internal topic."""

    def __init__(self, size_bytes: int, *, size_bytes_max: int) -> None:
        super().__init__(
            f"{size_bytes} bytes of records; a batch of the internal topic holds {size_bytes_max}"
        )
